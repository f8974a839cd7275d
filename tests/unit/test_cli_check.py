"""`pellucid check`: what it says of files, directories and models on the hub, and when it fails."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from safetensors.numpy import load_file, save_file

from pellucid.checking.template_variables import template_variables
from pellucid.loading.gguf_file import GgufFile
from pellucid.loading.hub import BUNDLED_MODEL
from support.checkpoints import write_checkpoint
from support.command_line import CommandLine
from support.fake_hub import FakeHub, serve, use_hub
from support.gguf_files import write_gguf

MODEL = "owner/tiny-model"


def reports(pellucid: CommandLine, *words: str) -> list[dict[str, Any]]:
    ran = pellucid("check", *words, "--json")
    found: list[dict[str, Any]] = json.loads(ran.out)
    assert ran.status == (0 if all(each["opens"] for each in found) else 1)
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "tiny", "gemma3", dtype="bfloat16")


@pytest.fixture
def gguf(tmp_path: Path, directory: Path) -> Path:
    return write_gguf(tmp_path / "tiny-Q8_0.gguf", directory, matrix_type=GGMLQuantizationType.Q8_0)


def test_a_file_and_its_directory_say_the_same(
    pellucid: CommandLine, directory: Path, gguf: Path
) -> None:
    of_directory, of_file = reports(pellucid, str(directory), str(gguf))
    assert (of_directory["model"], of_file["model"]) == ("tiny", "tiny-Q8_0.gguf")
    formats = [each["facts"].pop("file_format") for each in (of_directory, of_file)]
    types = [each["facts"].pop("types") for each in (of_directory, of_file)]
    assert formats == ["safetensors", "gguf"]
    assert [each["name"] for each in types[0]] == ["BF16"]
    assert {each["name"] for each in types[1]} == {"BF16", "Q8_0", "F32"}  # by their rows
    assert of_directory["facts"] == of_file["facts"]
    facts = of_file["facts"]
    assert facts["architecture"] == "Gemma3ForCausalLM"
    assert sum(group["count"] for group in facts["layers"]) == facts["num_layers"]
    assert {group["window"] for group in facts["layers"]} == {None, 8}
    assert [each["token_id"] for each in of_directory["end_tokens"]] == [
        each["token_id"] for each in of_file["end_tokens"]
    ]
    same = ("parameters", "kv_bytes_per_request")
    assert {name: of_directory["needs"][name]["value"] for name in same} == {
        name: of_file["needs"][name]["value"] for name in same
    }


def test_end_tokens_are_those_of_the_loaded_tokenizer_and_say_who_names_them(
    pellucid: CommandLine, directory: Path, gguf: Path
) -> None:
    (found,) = reports(pellucid, str(BUNDLED_MODEL))
    assert [(each["token_id"], each["text"]) for each in found["end_tokens"]] == [
        (1, "<|end_of_text|>"),
        (5, "<|end_of_turn|>"),
    ]
    assert found["end_tokens"][1]["named_by"] == ["generation_config.json: eos_token_id"]
    (found,) = reports(pellucid, str(gguf))
    assert [each["named_by"] for each in found["end_tokens"]] == [
        ["tokenizer.ggml.eos_token_id"],
        ["tokenizer.ggml.eot_token_id"],
    ]


TEMPLATE = "{% for m in messages %}{% if tools %}<tool_call>{% endif %}{% if enable_thinking %}"


@pytest.mark.parametrize(
    ("template", "chat"),
    [
        (None, {"has_template": False, "takes_tools": False, "answer_family": None}),
        ("{{ messages }}", {"has_template": True, "takes_tools": False, "reasons": False}),
        (
            TEMPLATE,
            {
                "takes_tools": True,
                "answer_family": "hermes",
                "reads_tool_calls": True,
                "reasons": True,
                "reasoning_variable": "enable_thinking",
            },
        ),
        ("{{ messages, tools }}", {"takes_tools": True, "reads_tool_calls": False}),
    ],
)
def test_what_a_template_does(
    pellucid: CommandLine, directory: Path, template: str | None, chat: dict[str, Any]
) -> None:
    def add(writer: GGUFWriter) -> None:
        writer.kv_data[0].pop("tokenizer.chat_template", None)
        if template is not None:
            writer.add_chat_template(template)

    gguf = write_gguf(directory.with_name("chat.gguf"), directory, edit=add)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(config | {"chat_template": template}))
    for found in reports(pellucid, str(directory), str(gguf)):
        assert {name: found["chat"][name] for name in chat} == chat


def test_a_checkpoint_may_say_how_its_answers_are_read(
    pellucid: CommandLine, directory: Path
) -> None:
    path = directory / "tokenizer_config.json"
    says = {"chat_template": "{{ messages, tools }}", "response_template": {"fields": {}}}
    path.write_text(json.dumps(says))
    (found,) = reports(pellucid, str(directory))
    assert found["chat"]["answer_family"] == "checkpoint" and found["chat"]["reads_tool_calls"]
    lines = pellucid("check", str(directory)).out
    assert "calls are read as the checkpoint says" in " ".join(lines.split())


def test_people_get_lines(pellucid: CommandLine, gguf: Path) -> None:
    ran = pellucid("check", str(gguf))
    assert ran.status == 0 and ran.err == ""
    lines = ran.out.splitlines()
    assert lines[0] == "tiny-Q8_0.gguf: opens"
    labels = [line[2:24].strip() for line in lines[1:]]
    for label in ("family", "layers", "context", "vocabulary", "stored as", "answers end at"):
        assert label in labels
    assert "weights" in labels and "longest context alone" in labels


def test_notes_are_shown(pellucid: CommandLine, directory: Path) -> None:
    def add(writer: GGUFWriter) -> None:
        writer.add_uint32("gemma3.vision.block_count", 27)
        writer.add_tensor("mm.input_projection.weight", np.ones((3, 3), np.float32))

    gguf = write_gguf(directory.with_name("vision.gguf"), directory, edit=add)
    (found,) = reports(pellucid, str(gguf))
    [note] = found["notes"]
    assert "left out" in note and "images" in note
    assert f"note{' ' * 20}{note.split()[0]}" in pellucid("check", str(gguf)).out


# -- what does not open ----------------------------------------------------------------------------


EXPERTS = "model.layers.1.block_sparse_moe.experts"


def refusals(directory: Path) -> dict[Path, str]:
    """Models that do not open, and what is said of them."""
    folder = directory.parent
    good = write_gguf(folder / "good.gguf", directory).read_bytes()

    def file(name: str, data: bytes) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    def gguf(name: str, *entries: tuple[str, str]) -> Path:
        writer = GGUFWriter(folder / name, "mamba")
        for key, value in entries:
            writer.add_string(key, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return folder / name

    no_tokenizer = write_checkpoint(folder / "no-tokenizer", "llama")
    (no_tokenizer / "tokenizer.json").rename(no_tokenizer / "tokenizer.model")
    cut = write_checkpoint(folder / "cut", "llama")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (folder / "empty").mkdir()
    (without := folder / "without").mkdir()
    shutil.copytree(directory, without, dirs_exist_ok=True)
    tensors = load_file(without / "model.safetensors")
    lost = next(name for name in tensors if name.endswith("layers.1.mlp.down_proj.weight"))
    save_file(
        {name: each for name, each in tensors.items() if name != lost},
        without / "model.safetensors",
    )
    no_expert = write_checkpoint(
        folder / "no-expert",
        "mixtral",
        edit_weights=lambda tensors: tensors.pop(f"{EXPERTS}.0.w2.weight"),
    )
    renamed = good.replace(b"blk.1.ffn_down.weight", b"blk.1.ffn_dawn.weight")
    return {
        without: "tensor .*layers.1.mlp.down_proj.weight is missing",
        file("renamed.gguf", renamed): "tensor blk.1.ffn_down.weight is missing",
        file("cut.gguf", good[:1000]): "damaged GGUF file: it ends within",
        file("short.gguf", good[:-1]): "damaged GGUF file: tensor .* ends at byte",
        file("foreign.gguf", b"PK\3\4" + bytes(100)): "it begins with b'PK",
        file("nothing.gguf", b""): "the file is empty",
        gguf("mamba.gguf"): "general.architecture",
        gguf("lora.gguf", ("general.type", "adapter")): "LoRA adapter",
        folder / "missing.gguf": "no such file or directory",
        file("words.txt", b"hello"): "is not a model",
        no_tokenizer: "it has only tokenizer.model",
        cut: "damaged safetensors file",
        no_expert: rf"tensor .*{EXPERTS}\.0\.w2\.weight or .* is missing",
        folder / "empty": "is not a model: the directory has no config.json",
    }


def test_each_refusal_is_a_sentence_and_others_are_checked(
    pellucid: CommandLine, directory: Path
) -> None:
    expected = refusals(directory)
    found = reports(pellucid, *map(str, expected), str(directory))
    assert [each["opens"] for each in found] == [False] * len(expected) + [True]
    for report, message in zip(found, expected.values(), strict=False):
        assert report["refusal"] is not None
        with pytest.raises(ValueError, match=message):
            raise ValueError(report["refusal"])
    ran = pellucid("check", *map(str, expected), str(directory))
    assert ran.status == 1 and ran.out.count(": does not open\n") == len(expected)
    assert ran.out.count(": opens\n") == 1 and "Traceback" not in ran.err


def test_options_are_checked(pellucid: CommandLine, directory: Path) -> None:
    ran = pellucid("check", str(directory), "--quantization", "int3")
    assert ran.status == 1 and "quantization='int3'" in ran.out
    assert pellucid("check").status == 2


def test_quantization_changes_what_is_needed(pellucid: CommandLine, directory: Path) -> None:
    stored, quantized = (
        reports(pellucid, str(directory), *words)[0]["needs"]["weight_bytes"]["value"]
        for words in ((), ("--quantization", "int4"))
    )
    assert quantized < stored / 2


# -- the hub ---------------------------------------------------------------------------------------


def test_models_on_the_hub(
    pellucid: CommandLine,
    directory: Path,
    gguf: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    here = reports(pellucid, str(directory), str(gguf))
    with serve(FakeHub(MODEL, {**files, gguf.name: gguf.read_bytes()})) as hub:
        use_hub(monkeypatch, hub.url, tmp_path / "cache")
        there = reports(pellucid, MODEL, f"{MODEL}:Q8_0")
        assert [each.pop("model") for each in there] == [MODEL, f"{MODEL}:Q8_0"]
        for each in (*here, *there):
            each.pop("model", None)
            for name in ("kv_blocks", "requests_that_fit", "longest_context"):
                del each["needs"][name]
        assert there == here
        found = reports(pellucid, "owner/other", f"{MODEL}:Q4_K_M", MODEL)
    assert [each["opens"] for each in found] == [False, False, True]
    assert "no such model at" in found[0]["refusal"]
    assert f"choose one of {MODEL}:Q8_0" in found[1]["refusal"]


# -- dumps -----------------------------------------------------------------------------------------

PRIVATE = "jane.doe"


def test_a_dump_of_a_file_holds_facts_and_nobody(pellucid: CommandLine, directory: Path) -> None:
    template = (
        f"{{# by {PRIVATE} #}}{{% for m in messages %}}{{{{ m.content | trim }}}}{{% endfor %}}"
    )

    def add(writer: GGUFWriter) -> None:
        writer.add_author(PRIVATE)
        writer.add_name(f"{PRIVATE}'s model")
        writer.add_url(f"https://example.org/{PRIVATE}")
        writer.add_quantized_by(PRIVATE)
        writer.add_tags([PRIVATE])
        writer.add_string("quantize.imatrix.file", f"/home/{PRIVATE}/imatrix.dat")
        writer.add_string("gemma3.note", f"C:\\Users\\{PRIVATE}")
        writer.kv_data[0].pop("tokenizer.chat_template", None)
        writer.add_chat_template(template)

    gguf = write_gguf(directory.with_name("tiny.gguf"), directory, edit=add)
    ran = pellucid("check", "--dump", str(gguf))
    assert ran.status == 0 and PRIVATE not in ran.out and str(directory.parent) not in ran.out
    found = json.loads(ran.out)
    assert (found["source"], found["file"], found["partial"]) == (None, "tiny.gguf", False)
    kv = found["kv"]
    assert kv["general.architecture"] == ["str", "gemma3"]
    assert kv["general.author"] == kv["quantize.imatrix.file"] == kv["gemma3.note"] == ["str"]
    assert kv["general.tags"] == ["arr[str,1]"]
    assert kv["gemma3.attention.sliding_window"] == ["u32", 8]
    file = GgufFile(gguf)
    assert kv.keys() == file.metadata.keys()
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert kv["tokenizer.ggml.tokens"] == [f"arr[str,{len(tokens)}]"]
    assert found["first_tokens"] == tokens[:12]
    assert found["templates"]["tokenizer.chat_template"] == {
        "characters": len(template),
        "sha256": hashlib.sha256(template.encode()).hexdigest(),
        "variables": ["messages"],
    }
    assert found["tensors"].keys() == file.tensors.keys()
    info = file.tensors["blk.0.ffn_up.weight"]
    assert found["tensors"]["blk.0.ffn_up.weight"] == [info.type.name, list(info.shape[::-1])]
    assert sum(found["types"].values()) == len(file.tensors)
    assert "gemma3.note" in found["note"]  # why it does not open


def test_a_dump_of_a_directory(pellucid: CommandLine, directory: Path) -> None:
    config_file = directory / "config.json"
    config = json.loads(config_file.read_text()) | {"_name_or_path": f"/home/{PRIVATE}/model"}
    config_file.write_text(json.dumps({**config, "auto_map": {"AutoModel": f"{PRIVATE}/x"}}))
    (directory / "chat_template.jinja").write_text(f"{{{{ tools }}}} {PRIVATE}")
    ran = pellucid("check", "--dump", str(directory))
    assert ran.status == 0 and PRIVATE not in ran.out
    found = json.loads(ran.out)
    assert found["config"]["num_hidden_layers"] == config["num_hidden_layers"]
    assert found["config"]["auto_map"] == {"AutoModel": "..."}
    assert found["templates"]["default"]["variables"] == ["tools"]
    assert found["tensors"]["model.embed_tokens.weight"][0] == "BF16"
    assert found["generation_config"]["eos_token_id"]


def test_a_dump_is_of_one_model_with_a_header(pellucid: CommandLine, gguf: Path) -> None:
    ran = pellucid("check", "--dump", str(gguf), str(gguf))
    assert ran.status == 2 and "--dump: takes one model, got 2" in ran.err
    gguf.write_bytes(gguf.read_bytes()[:100])
    ran = pellucid("check", "--dump", str(gguf))
    assert ran.status == 2 and "damaged GGUF file: it ends within" in ran.err


@pytest.mark.parametrize(
    ("source", "variables"),
    [
        ("{{ a.b }}{{ c['d'] }}{{ e | f }}{% if g is h and i is not j %}{% endif %}", "a c e g i"),
        ("{% set a = b %}{{ a }}{% for c in d %}{{ c }}{{ loop.index }}{% endfor %}", "b d"),
        ("{% if not a %}{% set a = 1 %}{% endif %}{{ f(x=y) }}", "a f y"),
        ("{% macro m(p) %}{{ p }}{{ q }}{% endmacro %}{{ m(p) }}", "p q"),
        ("{{ 'text' }}{# comment #}{{ a ** 10 ** 10 }}", "a"),
        ("{% if", ""),
        ("{{ " + "(" * 100_000, ""),
    ],
)
def test_variables_of_a_template(source: str, variables: str) -> None:
    assert template_variables(source) == variables.split()
