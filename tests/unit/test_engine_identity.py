"""The identity of an engine: what tells blocks on disk apart."""

from dataclasses import replace

from pellucid.execution.engine_identity import EngineIdentity
from pellucid.facts.kv_formats import KV_FORMATS


def test_a_fingerprint_says_how_numbers_are_stored(monkeypatch):
    identity = EngineIdentity("1", "cpu", "ab", "cd", "none", True, "int4", 32)
    before = identity.digest
    assert identity.id == before.hex()[: 2 * 16]
    assert replace(identity).digest == before != replace(identity, block_size=64).digest
    monkeypatch.setitem(KV_FORMATS, "int4", KV_FORMATS["int8,int4"])
    assert replace(identity).digest != before
