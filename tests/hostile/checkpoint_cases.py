"""Hostile model directories: config.json, safetensors, their index, SHA256SUMS, and the prefix cache."""

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile.case import Case
from pellucid import LLM
from support.checkpoints import checkpoint_config, write_checkpoint
from support.foreign_checkpoints import WriteMatrix, fp8, write_foreign_checkpoint

MIB = 1 << 20
MEGABYTES = 9_000_000


def load(path: Path) -> None:
    """The whole way of a model: files, weights, tokenizer, engine."""
    LLM(str(path), kv_cache_memory=16 * MIB, max_model_len=128).close()


def directory(edit: Callable[[Path], object]) -> Callable[[Path], Path]:
    """Makes a good checkpoint and edits it."""

    def make(path: Path) -> Path:
        edit(write_checkpoint(path / "model", "llama"))
        return path / "model"

    return make


def GOOD() -> None:  # noqa: N802 (one of the three that warm up)
    """Loads a good checkpoint."""
    import tempfile

    with tempfile.TemporaryDirectory() as path:
        load(directory(lambda _: None)(Path(path)))


def file_case(area: str, what: str, file: str, content: bytes | str, **facts: Any) -> Case:
    """A good checkpoint in which one file has another content."""
    data = content.encode() if isinstance(content, str) else content
    return Case(
        f"{area}: {what}", directory(lambda path: (path / file).write_bytes(data)), load, **facts
    )


def special_file_cases(area: str, file: str) -> list[Case]:
    """One file that is no regular file."""

    def replace(make: Callable[[Path], object]) -> Callable[[Path], object]:
        def edit(path: Path) -> None:
            (path / file).unlink(missing_ok=True)
            make(path / file)

        return edit

    kinds: dict[str, Callable[[Path], object]] = {
        "a FIFO": os.mkfifo,
        "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
        "a directory": Path.mkdir,
        "a pointer of Git LFS": lambda path: path.write_text(
            "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
        ),
    }
    return [
        Case(f"{area}: {kind} as {file}", directory(replace(make)), load)
        for kind, make in kinds.items()
    ]


COSTLY_JSON = {
    "nested deeply": '{"a":' * 400_000,
    "nested deeply and closed": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "three million lists": '{"a":[' + "[]," * (MEGABYTES // 3) + "[]]}",
    "deep lists side by side": '{"a":[' + ("[" * 400 + "]" * 400 + ",") * 11_000 + "1]}",
    "three million objects": '{"a":[' + "{}," * (MEGABYTES // 3) + "{}]}",
    "a number of nine million digits": '{"a":' + "9" * MEGABYTES + "}",
    "a string without an end": '{"a":"' + "x" * MEGABYTES,
    "not UTF-8": b'{"a":"\xff"}',
    "no object": "[1]",
    "zeros": bytes(MEGABYTES),
    "longer than any": '{"a":"' + "x" * (17 * MIB) + '"}',
}


def json_cases(area: str, file: str) -> list[Case]:
    """One JSON file that costs more than it weighs."""
    return [file_case(area, f"{what} in {file}", file, it) for what, it in COSTLY_JSON.items()]


# -- config.json -----------------------------------------------------------------------------------


def config_case(what: str, **changes: Any) -> Case:
    content = json.dumps(checkpoint_config("llama") | changes)
    return file_case("config", what, "config.json", content)


CONFIG_CASES = [
    *json_cases("config", "config.json"),
    *special_file_cases("config", "config.json"),
    config_case("an architecture of nine million letters", architectures=["x" * MEGABYTES]),
    config_case("an activation of nine million letters", hidden_act="x" * MEGABYTES),
    config_case("two billion layers", num_hidden_layers=2**31 - 1),
    config_case("ten thousand layers", num_hidden_layers=10_000),
    config_case("two billion hidden units", hidden_size=2**31 - 4, head_dim=16),
    config_case("two billion tokens", vocab_size=2**31 - 1),
    config_case("two billion heads", num_attention_heads=2**30, num_key_value_heads=2**30),
    config_case("an endless context", rope_parameters={"rope_type": "linear", "factor": 1e9}),
    config_case("a bos_token_id of -5", bos_token_id=-5),
    config_case("an eos_token_id above 64 bits", eos_token_id=2**70),
    config_case("infinite numbers", rms_norm_eps=float("inf")),
    config_case("a foreign quantization", quantization_config={"quant_method": "x" * MEGABYTES}),
    config_case(
        "a quantization of ours that is not", quantization_config={"quant_method": "pellucid"}
    ),
    *json_cases("generation config", "generation_config.json"),
    *special_file_cases("generation config", "generation_config.json"),
    file_case(
        "generation config", "temperature NaN", "generation_config.json", '{"temperature": NaN}'
    ),
    file_case(
        "generation config",
        "four million end tokens",
        "generation_config.json",
        json.dumps({"eos_token_id": [1] * 3_000_000}, separators=(",", ":")),
        may_succeed=True,
    ),
]


# -- weights ---------------------------------------------------------------------------------------


def foreign_case(what: str, quantization: dict[str, Any], write_matrix: WriteMatrix) -> Case:
    """A checkpoint of another quantizer, whose config.json says something else than its arrays."""

    def make(path: Path) -> Path:
        model = write_foreign_checkpoint(path / "model", quantization, write_matrix)
        for file in (model / "floats").glob("*token*"):
            shutil.copy(file, model)
        return model

    return Case(f"weights: {what}", make, load, may_succeed=True)


def safetensors(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def described(names: list[str], **facts: Any) -> bytes:
    entry = json.dumps({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} | facts)
    return ("{" + ",".join(f'"{name}":{entry}' for name in names) + "}").encode()


def weights_case(what: str, content: bytes) -> Case:
    return file_case("weights", what, "model.safetensors", content)


def sharded(path: Path, weight_map: dict[str, str]) -> None:
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}, separators=(",", ":")))


def quantized(path: Path, metadata: dict[str, str]) -> None:
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "pellucid", "format": "int8", "version": 1}
    (path / "config.json").write_text(json.dumps(config))
    facts = {"pellucid_format": "int8", "pellucid_version": "1"} | metadata
    header = json.dumps({"__metadata__": facts}).encode()
    (path / "model.safetensors").write_bytes(safetensors(header))


WEIGHT_CASES = [
    *special_file_cases("weights", "model.safetensors"),
    weights_case("empty", b""),
    weights_case("a header of 2^63 bytes", struct.pack("<Q", 1 << 63) + b"{}"),
    weights_case("a header longer than the file", struct.pack("<Q", MEGABYTES) + b"{}"),
    weights_case(
        "a hundred thousand tensors", safetensors(described([f"t{i}" for i in range(120_000)]))
    ),
    weights_case("one name many times", safetensors(described(["t"] * 120_000))),
    weights_case("a name of nine million letters", safetensors(described(["t" * MEGABYTES]))),
    weights_case("a shape beyond 64 bits", safetensors(described(["t"], shape=[2**40, 2**40]))),
    weights_case("many dimensions", safetensors(described(["t"], shape=[1] * 1_000_000))),
    weights_case("a deep header", safetensors(b'{"a":' * 1_000_000)),
    weights_case(
        "metadata only", safetensors(b'{"__metadata__":{"a":"' + b"x" * MEGABYTES + b'"}}')
    ),
    foreign_case(
        "scales of a billion inputs",
        {"quant_method": "fp8", "weight_block_size": [1, 10**9]},
        fp8((1, 1000)),
    ),
    *json_cases("index", "model.safetensors.index.json"),
    *special_file_cases("index", "model.safetensors.index.json"),
    Case(
        "index: a hundred thousand shards that are missing",
        directory(lambda path: sharded(path, {f"t{i}": f"s{i}" for i in range(100_000)})),
        load,
    ),
    Case(
        "index: a hundred thousand tensors that are not there",
        directory(
            lambda path: sharded(path, {f"t{i}": "model.safetensors" for i in range(100_000)})
        ),
        load,
    ),
    Case(
        "quantized: shapes nested deeply",
        directory(lambda path: quantized(path, {"pellucid_shapes": "[" * 1_000_000})),
        load,
    ),
    Case(
        "quantized: three million lists as shapes",
        directory(
            lambda path: quantized(path, {"pellucid_shapes": "[" + "[]," * 3_000_000 + "[]]"})
        ),
        load,
    ),
    Case(
        "quantized: many shapes",
        directory(
            lambda path: quantized(
                path, {"pellucid_shapes": json.dumps({f"t{i}": [1, 1] for i in range(300_000)})}
            )
        ),
        load,
    ),
]


# -- SHA256SUMS ------------------------------------------------------------------------------------


def sums(path: Path, *names: str, of: str = "model.safetensors") -> None:
    digest = hashlib.sha256((path / of).read_bytes()).hexdigest()
    (path / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name in names))


def many_names_of_one_file(path: Path) -> None:
    with (path / "large").open("wb") as file:
        file.truncate(8 * MIB)
    for i in range(2000):
        (path / f"l{i}").symlink_to("large")
    sums(path, *(f"l{i}" for i in range(2000)), of="large")


def sums_with_fifo(path: Path) -> None:
    os.mkfifo(path / "pipe")
    sums(path, "pipe", "config.json")


SUMS_CASES = [
    *special_file_cases("checksums", "SHA256SUMS"),
    file_case("checksums", "one endless line", "SHA256SUMS", "0" * MEGABYTES),
    file_case("checksums", "too many lines", "SHA256SUMS", ("0" * 64 + "  x\n") * 100_000),
    file_case(
        "checksums",
        "many missing files",
        "SHA256SUMS",
        "".join(f"{'0' * 64}  {i}\n" for i in range(13_000)),
        may_succeed=True,
    ),
    file_case("checksums", "names with dots", "SHA256SUMS", "0" * 64 + "  " + "a/" * 400_000 + "../x\n"),
    Case(
        "checksums: one line 5,000 times",
        directory(lambda path: sums(path, *["model.safetensors"] * 5000)),
        load,
        may_succeed=True,
    ),
    Case("checksums: 2,000 names of one file", directory(many_names_of_one_file), load, may_succeed=True),
    Case("checksums: a FIFO that is listed", directory(sums_with_fifo), load),
]  # fmt: skip


# -- directories of other kinds, the prefix cache --------------------------------------------------


def prefix_cache(fill: Callable[[Path], object]) -> Callable[[Path], tuple[Path, Path]]:
    def make(path: Path) -> tuple[Path, Path]:
        model = write_checkpoint(path / "model", "llama")
        cache = path / "cache"
        cache.mkdir(mode=0o700)
        fill(cache)
        return model, cache

    return make


def generate_with_prefix_cache(given: tuple[Path, Path]) -> None:
    model, cache = given
    with LLM(
        str(model), kv_cache_memory=16 * MIB, max_model_len=128, prefix_store=str(cache)
    ) as llm:
        llm.generate([list(range(2, 100))], use_tqdm=False)


def hostile_blocks(cache: Path) -> None:
    """What stands where the engine will look for its blocks and count files."""
    folder = cache / ("0" * 32)
    folder.mkdir()
    for i in range(2000):
        (folder / f"{i:064x}.kv").write_bytes(b"x")
    for i in range(2000, 3000):
        (folder / f"{i:064x}.kv").mkdir()
    os.mkfifo(folder / f"{3001:064x}.kv")
    (folder / f"{3002:064x}.kv").symlink_to("/dev/zero")
    (cache / ("1" * 32)).symlink_to("/")


OTHER_CASES = [
    Case("directory: empty", lambda path: path, load),
    Case("directory: a file of zeros", lambda path: _written(path / "x", bytes(MEGABYTES)), load),
    Case("directory: a FIFO", lambda path: os.mkfifo(path / "x.gguf") or path / "x.gguf", load),
    Case("directory: a device", lambda path: Path("/dev/zero"), load),
    Case("directory: a link to itself", lambda path: _link_to_itself(path / "x"), load),
    Case(
        "prefix cache: damaged and special files",
        prefix_cache(hostile_blocks),
        generate_with_prefix_cache,
        may_succeed=True,
    ),
    Case(
        "prefix cache: a file in place of the directory",
        prefix_cache(lambda cache: cache.rmdir() or cache.write_bytes(b"")),
        generate_with_prefix_cache,
    ),
]


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _link_to_itself(path: Path) -> Path:
    path.symlink_to(path)
    return path


CASES = (*CONFIG_CASES, *WEIGHT_CASES, *SUMS_CASES, *OTHER_CASES)
