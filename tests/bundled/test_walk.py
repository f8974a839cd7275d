"""What somebody reads who follows one request, or one block of the KV cache, through the package: files and functions,
counted over a run."""

import dataclasses
import gc
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
from msgspec import Struct

import pellucid
from pellucid import LLM, SamplingParams
from pellucid.scheduling import block_pool
from pellucid.scheduling.block import Block, BlockKey

PACKAGE = f"{Path(pellucid.__file__).parent}/"
# What holds today: a change that makes a walk shorter lowers them.
MAX_FILES, MAX_FUNCTIONS, MAX_FILES_OF_A_BLOCK = 34, 223, 15


@contextmanager
def called(enters: Callable[[FrameType, str, object], bool]) -> Iterator[dict[CodeType, str]]:
    """Collects the functions of the package, on all threads, for which `enters` holds when they are called or return,
    with "file: function". What stands in a function without a name belongs to it."""
    functions: dict[CodeType, str] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_named = code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<")
        if is_named and event in ("call", "return") and enters(frame, event, argument):
            name = getattr(code, "co_qualname", code.co_name)
            functions[code] = f"{code.co_filename[len(PACKAGE) :]}: {name}"

    threading.setprofile(note)
    sys.setprofile(note)
    gc.disable()  # it calls finalizers of others
    try:
        yield functions
    finally:
        gc.enable()
        sys.setprofile(None)
        threading.setprofile(None)


def files(functions: set[str] | list[str]) -> set[str]:
    return {each.partition(":")[0] for each in functions}


def shown(functions: set[str]) -> str:
    return "\n".join(
        [f"{len(files(functions))} files, {len(functions)} functions:", *sorted(functions)]
    )


def test_a_request_from_its_prompt_to_its_text() -> None:
    """Without drafts and more threads: times decide on their numbers."""
    runs, params = [], SamplingParams(max_tokens=16, seed=0)
    with LLM(speculation="off", num_threads=1) as llm:
        for _ in range(4):
            with called(lambda *_: True) as functions:
                llm.generate("Once upon a time", params, use_tqdm=False)
            runs.append(set(functions.values()))
    walk = set.intersection(*runs[1:])  # without what is done first, or now and then
    assert len(files(walk)) <= MAX_FILES and len(walk) <= MAX_FUNCTIONS, shown(walk)


class BlockId(int):
    """The number of a block, which is told from other numbers wherever it goes."""


class BlockWatch:
    """Tells which functions get a block, or give one: the block itself, its id, key, hash or contents, or data with one
    of them."""

    def __init__(self) -> None:
        self._hashes: set[bytes] = set()

    def enters(self, frame: FrameType, event: str, returned: object) -> bool:
        if event == "return":
            return self._holds_block(returned)
        code, values = frame.f_code, frame.f_locals
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return any(self._holds_block(values[it]) for it in names if it in values and it != "self")

    def _holds_block(self, value: Any) -> bool:
        match value:
            case BlockKey():
                self._hashes.add(value.block_hash)
                return True
            case BlockId() | Block():
                return True
            case bytes():
                return value in self._hashes
            case np.ndarray():
                return value.dtype == np.uint8 and value.nbytes > 1000
            case dict():
                return any(self._holds_block(each) for pair in value.items() for each in pair)
            case list() | tuple() | set() | frozenset():  # long ones have one kind of thing
                return any(map(self._holds_block, itertools.islice(value, 8)))
            case Struct():
                own = (getattr(value, name) for name in value.__struct_fields__)
                return value.__struct_config__.frozen and any(map(self._holds_block, own))
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return False
        if not value.__dataclass_params__.frozen:  # no data, but an object with blocks of its own
            return False
        return any(self._holds_block(getattr(value, it.name)) for it in dataclasses.fields(value))


def test_a_block_from_its_allocation_until_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are allocated, filled, sealed, shared, copied, swapped, stored, read and freed."""
    settings = {"block_size": 16, "num_kv_blocks": 24, "max_model_len": 128, "speculation": "off"}
    memory, disk = {"swap_space": 1 << 22}, {"prefix_store": str(tmp_path)}
    trunk = list(range(100, 148))
    prompts = [[*trunk, *range(200 + 20 * number, 220 + 20 * number)] for number in range(4)]
    params = [SamplingParams(max_tokens=30, n=2, seed=each, ignore_eos=True) for each in range(4)]
    monkeypatch.setattr(block_pool, "Block", lambda block_id: Block(BlockId(block_id)))
    outputs = []
    with called(BlockWatch().enters) as functions:
        for count, kept_in in ((4, memory), (2, disk), (2, disk)):
            with LLM(**settings, **kept_in) as llm:
                outputs += llm.generate(prompts[:count], params[:count], use_tqdm=False)
    assert any(each.num_cached_tokens for each in outputs)
    assert any(each.metrics.num_preemptions for each in outputs)
    walk = set(functions.values())
    names = " ".join(walk)
    assert all(step in names for step in ("seal", "copy_block", "swap_out", "swap_in", "load"))
    assert len(files(walk)) <= MAX_FILES_OF_A_BLOCK, shown(walk)


def test_the_packages_root_is_read_at_a_glance() -> None:
    modules = sorted(path.name for path in Path(PACKAGE).glob("*.py"))
    assert len(modules) <= 10, modules
