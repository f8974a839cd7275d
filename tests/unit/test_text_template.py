"""TextTemplate: a frame from a template is the frame that would be encoded whole."""

import json

import pytest

from pellucid.server.streaming import TextTemplate


@pytest.mark.parametrize("text", ["", " tree", '"', "\\", "\n\x00", "é🦊", '":""', "a" * 5000])
@pytest.mark.parametrize("model", ["", "m", '":""', "PLACE"])
def test_a_template_gives_what_encoding_gives(text: str, model: str) -> None:
    def frame(text: str) -> dict[str, object]:
        return {"model": model, "choices": [{"reasoning": text, "content": text}], "end": None}

    template = TextTemplate(json.dumps(frame(TextTemplate.PLACE)).encode())
    assert json.loads(template.of(text)) == frame(text)
