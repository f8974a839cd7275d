"""What a model's files hold and was left out is said once for each load, by whoever loads it."""

from dataclasses import replace

import pytest

from pellucid.loaded_model import LoadedModel
from support.command_line import CommandLine

NOTE = "only the text model is loaded, without vision_tower"


@pytest.mark.parametrize("words", [("run", "hi", "--max-tokens", "2"), ("chat", "hi")])
def test_commands_write_a_line(pellucid: CommandLine, words: tuple[str, ...]) -> None:
    pellucid.notes = (NOTE,)
    assert pellucid(*words).err.count(f"note: fake: {NOTE}\n") == 1
    assert pellucid(*words, "--quiet").err == ""


def test_scripts_get_a_warning_or_call_a_function(pellucid: CommandLine) -> None:
    pellucid.notes = (NOTE,)
    with pytest.warns(RuntimeWarning, match=f"^fake: {NOTE}$") as caught:
        pellucid.llm()
    assert len(caught) == 1
    assert caught[0].filename.endswith("command_line.py")  # where LLM(...) stands
    heard: list[str] = []
    pellucid.llm(on_note=heard.append)
    assert heard == [f"fake: {NOTE}"]


def test_a_draft_model_does_not_repeat_the_note(
    pellucid: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pellucid.notes = (NOTE,)

    def draft(config: object, model: LoadedModel) -> LoadedModel:
        return replace(model, name="draft", notes=(NOTE, "layer 3 is left out"))

    monkeypatch.setattr("pellucid.engine.llm_engine.load_draft_model", draft)
    heard: list[str] = []
    pellucid.llm(on_note=heard.append, speculation="draft", draft_model="draft")
    assert heard == [f"fake: {NOTE}", "draft: layer 3 is left out"]
