"""Templates of frames and of chunks give what encoding the whole frame gives."""

import json

import pytest

from pellucid.outputs import CompletionDelta
from pellucid.server.streaming import TextChunks, TextTemplate

TEXTS = ["", " tree", '"', "\\", "\n\x00", "é🦊", '":""', "100 %", "%b%x", "a" * 5000]
MODELS = ["", "m", '":""', "PLACE", "50%", "%b"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_template_gives_what_encoding_gives(text: str, model: str) -> None:
    def frame(text: str) -> dict[str, object]:
        return {"model": model, "choices": [{"reasoning": text, "content": text}], "end": None}

    template = TextTemplate(json.dumps(frame(TextTemplate.PLACE)).encode())
    assert json.loads(template.of(text)) == frame(text)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_chunk_has_its_size_and_what_encoding_gives(text: str, model: str) -> None:
    def frame(text: str) -> dict[str, object]:
        return {"model": model, "choices": [{"content": text}], "end": None}

    chunks = TextChunks(json.dumps(frame(TextTemplate.PLACE)).encode())
    made = [chunks.of(CompletionDelta("id", 0, text, [1, 2], None, None, None)) for _ in range(2)]
    assert chunks.num_tokens == 4
    assert made[0] == made[1]
    if not text:  # a chunk without data would end the body
        assert made[0] == b""
        return
    size, _, rest = made[0].partition(b"\r\n")
    data, end = rest[:-2], rest[-2:]
    assert (int(size, 16), end) == (len(data), b"\r\n")
    assert json.loads(data) == frame(text)
