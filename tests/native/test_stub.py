"""`_native.pyi` equals the stub that nanobind writes for the installed extension."""

from pathlib import Path

from nanobind.stubgen import StubGen

import pellucid
from pellucid import _native


def test_stub_is_up_to_date() -> None:
    generator = StubGen(_native)
    generator.put(_native)
    committed = Path(pellucid.__file__).with_name("_native.pyi").read_text()
    assert generator.get() == committed, "run `make stub`"
