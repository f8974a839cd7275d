"""The checkpoints in the package: complete, and any flipped bit is detected."""

import shutil
from pathlib import Path

import pytest

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.loading.hub import BUNDLED_MODEL, find_model
from support.decoders import load_decoder

CHECKPOINTS = sorted(path.parent for path in BUNDLED_MODEL.parent.glob("*/config.json"))


def test_the_default_model_is_there() -> None:
    assert find_model(None).path in CHECKPOINTS


@pytest.mark.parametrize("directory", CHECKPOINTS, ids=lambda path: path.name)
def test_loads(directory: Path) -> None:
    _, config = load_decoder(directory, NumpyBackend())
    assert config.eos_token_ids


@pytest.mark.parametrize("directory", CHECKPOINTS, ids=lambda path: path.name)
def test_a_flipped_bit_in_any_file_is_seen(directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / directory.name
    for name in sorted(path.name for path in directory.iterdir()):
        shutil.copytree(directory, copy, dirs_exist_ok=True)
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            load_decoder(copy, NumpyBackend())
