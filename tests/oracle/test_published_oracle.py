"""Published folders, cut down and with random weights, compared live with transformers: the same logits."""

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.facts.json_object import JsonObject
from pellucid.models.registry import parse_model_config
from pellucid.text.chat_template import ChatTemplate, TemplateWorkers
from support.decoders import load_decoder
from support.decoding import prompt_logits
from support.published_configs import FOLDER, VOCAB_SIZE, cut_down, published

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
theirs = pytest.importorskip("support.transformers_models")

GOLDEN = FOLDER.with_name("hf.golden.txt").read_text(encoding="utf-8").splitlines()
READ = [line.split("\t")[0] for line in GOLDEN if "\trefused: " not in line]
OPS = NumpyBackend()
PROMPT = [int(token) for token in np.random.default_rng(0).integers(1, VOCAB_SIZE, 21)]
# The text models of these have no class of their own for text.
QWEN_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "patch_size": 4,
    "deepstack_visual_indexes": [0],
}
SAME_CLASS = {"mimo": "qwen2"}  # transformers does not have it; its own code derives it so


def their_config(config: dict[str, Any], directory: Path) -> Any:
    """config.json as transformers reads it: of the text model, where there is a class for it."""
    config = {**config, "model_type": SAME_CLASS.get(config["model_type"], config["model_type"])}
    if (hidden := config.get("text_config", config).get("hidden_size")) and "vl" in config[
        "model_type"
    ]:
        config["vision_config"] = {**QWEN_VISION, "out_hidden_size": hidden}
    (directory / "config.json").write_text(json.dumps(config))
    whole = transformers.AutoConfig.from_pretrained(directory)
    text = whole.get_text_config()
    if type(text) not in transformers.AutoModelForCausalLM._model_mapping:
        return whole
    if text is not whole and "tie_word_embeddings" in config:  # the whole model's counts
        text.tie_word_embeddings = config["tie_word_embeddings"]
    return text


@pytest.mark.parametrize("name", READ)
def test_logits(name: str, tmp_path: Path) -> None:
    assert_same_logits(cut_down(published(name).config), tmp_path)


FACTS = json.loads((FOLDER.parents[1] / "golden" / "config_facts.json").read_text())
OF_TEXT = [
    name
    for name in FACTS
    if name in transformers.CONFIG_MAPPING
    and transformers.CONFIG_MAPPING[name] in transformers.AutoModelForCausalLM._model_mapping
]


@pytest.mark.parametrize("model_type", OF_TEXT)
@pytest.mark.parametrize("seed", range(3))
def test_logits_of_a_drawn_config(model_type: str, seed: int, tmp_path: Path) -> None:
    """Many keys at once have other values."""
    facts, rng = FACTS[model_type], random.Random(f"{model_type} {seed}")
    base = rng.randrange(len(facts["bases"]))
    config = {"model_type": model_type, **facts["bases"][base]}
    cases = [case for case in facts["cases"] if case[0] == base]
    for _, key, value, *_ in rng.sample(cases, len(cases) // 2):
        changed = config | {key: value}
        # Some values do not go with others.
        with contextlib.suppress(Exception):
            made = their_config(changed, tmp_path)
            theirs.make_theirs(made)(torch.tensor([PROMPT]))
            parse_model_config(JsonObject(tmp_path, changed))
            config = changed
    # Without regard to their size drawn numbers let the roundings of f32 grow.
    assert_same_logits(config, tmp_path, 1e-2)


def assert_same_logits(config: dict[str, Any], tmp_path: Path, tolerance: float = 1e-4) -> None:
    made = their_config(config, tmp_path)
    made.get_text_config().initializer_range = 0.25
    made.dtype = torch.float32
    torch.manual_seed(0)
    model = theirs.make_theirs(made).to(torch.float32)
    for parameter in model.parameters():  # norms and biases are born as ones and zeros
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    decoder, facts = load_decoder(tmp_path, OPS)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model.eval()(torch.tensor([PROMPT])).logits[0].numpy()
    actual = prompt_logits(decoder, facts, OPS, PROMPT)
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()
    assert np.abs(expected).max() > 0.1


# -- templates -------------------------------------------------------------------------------------

TEMPLATES = {path.stem: path for path in FOLDER.with_name("templates").glob("*.jinja")}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": 'Adds <two> & "more"',
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "description": "é"}},
            "required": ["a"],
        },
    },
}
CALL = {"type": "function", "id": "abcdefghi", "function": {"name": "add", "arguments": {"a": "ü"}}}
HI, ASK = {"role": "user", "content": "Hi <b>"}, {"role": "user", "content": " More "}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[Any] | None, dict[str, Any]]] = {
    "one turn": ([HI], None, {}),
    "a system message": ([{"role": "system", "content": "Be brief."}, HI], None, {}),
    "turns": ([HI, {"role": "assistant", "content": "Yes?\n"}, ASK], None, {}),
    "tools": ([HI], [TOOL], {}),
    "a call": (
        [
            HI,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "abcdefghi", "name": "add", "content": "3"},
        ],
        [TOOL],
        {},
    ),
    "reasoning": (
        [HI, {"role": "assistant", "content": "A", "reasoning_content": "B"}, ASK],
        None,
        {},
    ),
    "no thinking": ([HI], None, {"enable_thinking": False}),
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("opened", [False, True])
def test_templates(name: str, conversation: str, opened: bool) -> None:
    messages, tools, variables = CONVERSATIONS[conversation]
    source = TEMPLATES[name].read_bytes().decode()
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    workers = TemplateWorkers()
    ours = ChatTemplate(source, tokens, name, workers)
    [[expected], _] = transformers.utils.chat_template_utils.render_jinja_template(
        conversations=[messages],
        tools=tools,
        chat_template=source,
        add_generation_prompt=opened,
        **tokens,
        **variables,
    )
    assert ours.render(messages, opened, tools, variables) == expected
