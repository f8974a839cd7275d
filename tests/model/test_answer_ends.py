"""Where an answer of gpt-oss ends: after its messages, not after the first one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGUFWriter

from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.prompts import ChatPrompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import load_model
from support.answers import TOOLS, Message, message_of
from support.chat_templates import FAMILIES
from support.checkpoints import write_checkpoint
from support.fake_model import FakeBackend
from support.gguf_files import write_gguf
from support.scripted_model import ScriptedDecoder
from support.tiny_tokenizer import VOCAB_SIZE

CONTROL = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
END, RETURN = VOCAB_SIZE + 3, VOCAB_SIZE + 4
THOUGHT = "<|channel|>analysis<|message|>two and two<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 2}<|call|>'


def write_gpt_oss(directory: Path) -> Path:
    """With harmony's tokens and template, of which files list <|end|> as an end and not <|call|>."""
    write_checkpoint(directory, "gpt-oss", config_overrides={"eos_token_id": RETURN})
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    tokenizer["added_tokens"] += [
        {**tokenizer["added_tokens"][0], "id": VOCAB_SIZE + index, "content": token}
        for index, token in enumerate(CONTROL)
    ]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    path = directory / "tokenizer_config.json"
    changed = {"chat_template": FAMILIES["harmony"], "eos_token": "<|return|>"}
    config = json.loads(path.read_text()) | changed
    path.write_text(json.dumps(config))
    path = directory / "generation_config.json"
    generation = json.loads(path.read_text()) | {"eos_token_id": [END, RETURN]}
    path.write_text(json.dumps(generation))
    return directory


def drop_template(writer: GGUFWriter) -> None:
    for values in writer.kv_data:
        values.pop("tokenizer.chat_template", None)


@pytest.mark.parametrize("kind", ["safetensors", "GGUF"])
@pytest.mark.parametrize(
    ("rest", "content", "calls"),
    [("<|channel|>final<|message|>four<|return|>", "four", []), (CALL, "", [("add", {"a": 2})])],
)
def test_the_answer_after_the_reasoning_arrives(
    kind: str, rest: str, content: str, calls: list[object], tmp_path: Path
) -> None:
    path = write_gpt_oss(tmp_path)
    if kind == "GGUF":
        path = write_gguf(tmp_path / "model.gguf", tmp_path)
    model = load_model(EngineConfig(model=str(path), backend="numpy"))
    script = model.tokenizer.encode(THOUGHT + rest + "never", add_special_tokens=False)
    scripted = replace(
        model, decoder=ScriptedDecoder(script, model.config.vocab_size), backend=FakeBackend()
    )
    engine = LLMEngine(
        EngineConfig(model=str(path), enable_prefix_caching=False, speculation="off"), scripted
    )
    prompt = ChatPrompt([{"role": "user", "content": "2+2"}])
    params = SamplingParams(max_tokens=200, temperature=0, skip_special_tokens=False)
    output = engine.add_request(prompt, params)
    while engine.has_unfinished_requests:
        engine.step()
    completion = output.outputs[0]
    assert completion.finish_reason == "stop"
    parser = model.tokenizer.response_format.parser("<|start|>assistant", TOOLS)
    message = message_of([*parser.push(completion.text), *parser.flush()])
    assert message == Message("two and two", content, calls)


def test_without_a_template_the_vocabulary_tells_what_ends_an_answer(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", write_gpt_oss(tmp_path), edit=drop_template)
    model = load_model(EngineConfig(model=str(path), backend="numpy"))
    assert model.tokenizer.chat_template is None
    assert model.config.eos_token_ids == (RETURN, END)
    assert model.tokenizer.answer_ends(model.config.eos_token_ids) == (RETURN, RETURN + 1)
