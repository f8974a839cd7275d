"""Opens a checkpoint: a directory in Hugging Face layout or a GGUF file."""

from pathlib import Path

from pellucid.loading.stored_model import StoredModel


def open_stored_model(path: Path, *, verifies_checksums: bool = True) -> StoredModel:
    """Opens the checkpoint at `path` and checks what can be checked without reading weights.

    Args:
        path: a directory in Hugging Face layout, perhaps of `pellucid quantize`, or a GGUF file.
        verifies_checksums: whether the files of a directory are compared with its SHA256SUMS, which reads all
            of them.

    Raises:
        ValueError: a file is missing or damaged, or the checkpoint is not supported.
    """
    if not path.is_dir():
        # Imported here: each format has readers that the other one does not need.
        from pellucid.loading.gguf_model import open_gguf

        return open_gguf(path)
    from pellucid.loading.open_directory import open_directory

    return open_directory(path, verifies_checksums)
