"""Commands that users type (correct, mistyped, or for vLLM, llama.cpp and Ollama), and the output that they
should see. The bundled model stands for every model; it is loaded once."""

import io
import shlex
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pellucid.cli import main
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel
from support.bundled import bundled_model

HUB_MODEL = "Qwen/Qwen3-0.6B"
SAME_MODEL = (None, HUB_MODEL, "models/tiny", "there.gguf", "bartowski/Qwen3-0.6B-GGUF:Q4_K_M")
FRANCE = "The capital of France is"
GREEDY = "--temperature 0"


@dataclass(frozen=True)
class Typed:
    """A command line and what it must do.

    Attributes:
        line: after "pellucid", as a shell splits it.
        status: of the exit.
        out: texts that stdout must hold, in this order.
        err: texts that stderr must hold.
        never: texts that nothing may hold.
        exactly: all of stdout.
        loads: the model that is loaded; "" for none.
        environment: variables.
        config: the configuration file.
    """

    line: str
    status: int = 0
    out: tuple[str, ...] = ()
    err: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    exactly: str | None = None
    loads: str | None = None
    stdin: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    config: str = ""


def refused(line: str, *err: str, **more: object) -> Typed:
    """A command line that is an error before any model is loaded; one line on stderr."""
    return Typed(line, 2, err=err, exactly="", loads="", **more)  # type: ignore[arg-type]


def paris(line: str, **more: object) -> Typed:
    """A command line that continues "The capital of France is", greedily."""
    return Typed(f"{line} {GREEDY} -n 4", exactly=" Paris.", **more)  # type: ignore[arg-type]


def paris_answer(line: str, **more: object) -> Typed:
    """A command line that answers what the capital of France is, greedily."""
    return Typed(f"{line} {GREEDY}", exactly=f"{FRANCE} Paris.", **more)  # type: ignore[arg-type]


TYPED = [
    # -- the README and the docs
    Typed(f'run "{FRANCE}" --temperature 0 --max-tokens 4', exactly=" Paris.", err=("greedy\n",)),
    Typed('run "Once upon a time" --temperature 0.8 --seed 1 -n 12', err=("max_tokens 12", "seed 1")),
    Typed(f'chat "What is the capital of France?" {GREEDY}', exactly="The capital of France is Paris.\n", err=()),
    Typed(f'run "{FRANCE}" --beam-width 2 -n 4', out=(" Paris.",), err=("beam width 2",)),
    Typed(f'run --json "{FRANCE}" {GREEDY} -n 4', out=('"text": " Paris."',)),
    # -- a model is what the user means
    paris(f'run {HUB_MODEL} "{FRANCE}" --raw', loads=HUB_MODEL),
    paris_answer(f"run {HUB_MODEL}", stdin="What is the capital of France?\n", loads=HUB_MODEL),
    paris_answer(f'run {HUB_MODEL} "What is the capital of France?"', loads=HUB_MODEL),
    Typed(f"run models/tiny {GREEDY} -n 4 --raw", stdin=FRANCE, exactly=" Paris.", loads="models/tiny"),
    Typed(f"run there.gguf {GREEDY} -n 4 --raw", stdin=FRANCE, exactly=" Paris.", loads="there.gguf"),
    paris(f'run bartowski/Qwen3-0.6B-GGUF:Q4_K_M "{FRANCE}" --raw', loads="bartowski/Qwen3-0.6B-GGUF:Q4_K_M"),
    paris(f'run -m models/tiny "{FRANCE}" --raw', loads="models/tiny"),
    Typed(f"run -m models/tiny -f prompt.txt --raw {GREEDY} -n 4", exactly=" Paris.", loads="models/tiny"),
    paris("run -f prompt.txt"),
    paris("run -", stdin=FRANCE + "\n"),
    paris("run", stdin=FRANCE + "\n"),
    paris(f'run -p "{FRANCE}"'),
    Typed(f"run hi {GREEDY}", out=("H",), never=(",,",)),
    paris_answer('run "What is the capital of France?"'),
    paris(f'run "{FRANCE}" --max-model-len 1k'),
    paris("run", stdin="\ufeff" + FRANCE + "\n"),
    paris(f'run models/tiny -p "{FRANCE}" --raw', loads="models/tiny"),
    Typed("run -p llama -n 1 --temperature 0", err=("max_tokens 1",)),
    refused("run nothere.gguf", "no such file or directory: nothere.gguf"),
    refused(f'run nothere.gguf "{FRANCE}"', "no such file or directory: nothere.gguf"),
    refused(f'run ./models/nothere "{FRANCE}"', "no such file or directory: ./models/nothere"),
    refused(f'run /no/such/model "{FRANCE}"', "no such file or directory: /no/such/model"),
    refused(f'run llama9 "{FRANCE}"', "no such file or directory: llama9", "owner/name"),
    refused("run qwen3:7b", "no such file or directory: qwen3:7b, and no short name", "qwen3:0.6b, qwen3:1.7b"),
    paris(f'run hf.co/{HUB_MODEL} "{FRANCE}" --raw', loads=HUB_MODEL),
    refused("run prompt.txt", "prompt.txt: is not a model", "-f prompt.txt"),
    refused("run models/tiny/model.safetensors hi", "name its directory: models/tiny"),
    refused("run Once upon a time", 'in quotes: "Once upon a time"'),
    refused(f"run {HUB_MODEL} why is the sky blue", 'in quotes: "why is the sky blue"'),
    refused("run -m models/tiny once upon", 'in quotes: "once upon"'),
    refused('run models/tiny "one" -p "two"', "the prompt is given already"),
    refused("run -f nothere.txt", "nothere.txt: No such file or directory"),
    refused("run -m nothere -p hi", "no such file or directory: nothere"),
    Typed("run", 2, err=("prompt: is empty",), exactly=""),
    refused("bench nothere.gguf", "no such file or directory: nothere.gguf"),
    refused("chat nothere.gguf", "no such file or directory: nothere.gguf"),
    # -- options
    paris(f'run "{FRANCE}" -q', err=()),
    Typed(rf"run 'One. Two.\nThree' --stop '\n' {GREEDY} -n 3 --json", out=(r'"stop": ["\n"]',)),
    Typed(f'run "{FRANCE}" {GREEDY} -n -1', exactly=" Paris."),
    Typed(f'run "{FRANCE}" {GREEDY} --kv-cache-memory 8MiB --json', out=('"kv_cache_memory": 8388608',)),
    paris_answer('run --chat "What is the capital of France?"'),
    Typed(f'run --system "Be brief." "What is the capital of Italy?" {GREEDY}', out=("Rome",)),
    refused('run hi --kv-cache-memory "2 gigs"', "'2 gigs' is not a size", "2GiB"),
    refused("run hi --prefix-store ''", "--prefix-store", "is empty"),
    refused("run hi --max-model-len 8q", "'8q' is not a number of tokens", "8K"),
    refused("run hi -ngl 99", "no such option: -ngl; use --device cuda"),
    refused("run hi -st", "no such option: -st; use pellucid run"),
    refused("run hi --temperature -1", "temperature=-1", "at least 0"),
    refused("run hi --backend gpu", "backend='gpu'", "cpu"),
    refused("run hi --max-token 5", "--max-token", "--max-tokens"),
    refused("run hi --system x --raw", "--system", "--raw"),
    Typed("run hi --think", 2, err=("enable_thinking",), exactly=""),
    # -- the form of an answer
    Typed(
        f'run "What is the capital of Peru?" --choice Lima --choice Rome {GREEDY}',
        exactly="Lima",
        err=("the form of the answer is complete",),
    ),
    Typed(f"chat hi --regex '0[0-9]' {GREEDY}", out=("0",)),
    Typed(f"run hi --json-schema schema.json {GREEDY}", out=('{"n": ', "}")),
    refused("run hi --json-schema nothere.json", "structured_outputs.json: is not JSON"),
    refused("run hi --choice a --regex b", "regex, choice given; exactly one"),
    refused("run hi --choice a --choice b --beam-width 2", "structured_outputs", "beam search"),
    # -- defaults of one's own
    Typed(f'run "{FRANCE}" --raw -n 4',
        exactly=" Paris.", loads="models/tiny",
        environment={"PELLUCID_MODEL": "models/tiny", "PELLUCID_TEMPERATURE": "0"}),
    paris(f'run {HUB_MODEL} "{FRANCE}" --raw', loads=HUB_MODEL, environment={"PELLUCID_MODEL": "models/tiny"}),
    Typed(f'run "{FRANCE}" -n 4',
        exactly=" Paris.", loads="models/tiny", config='model = "models/tiny"\nraw = true\n[run]\ntemperature = 0\n'),
    refused("run hi", "no such file or directory: nothere", "environment variable PELLUCID_MODEL",
        environment={"PELLUCID_MODEL": "nothere"}),
    refused("chat hi", "no such file or directory: nothere", "set in", "config.toml", config='model = "nothere"'),
    refused("bench", "no such file or directory: nothere", "set in", "config.toml", config='model = "nothere"'),
    refused("run nothere/ hi", "no such file or directory: nothere/", never=("PELLUCID_MODEL",),
        environment={"PELLUCID_MODEL": "models/tiny"}),
    refused("run hi", "PELLUCID_CONFIG=nothere.toml: no such file", environment={"PELLUCID_CONFIG": "nothere.toml"}),
    refused("run hi", "PELLUCID_TEMPERATURE", "warm", environment={"PELLUCID_TEMPERATURE": "warm"}),
    refused("run hi", "temperature=-1", "environment variable PELLUCID_TEMPERATURE",
        environment={"PELLUCID_TEMPERATURE": "-1"}),
    refused("run hi", "config.toml: temperatur: no such option; did you mean temperature?", config="temperatur = 1"),
    refused("run hi", "config.toml: [run] num_threads = 'two': must be a whole number",
        config="[run]\nnum_threads = 'two'"),
    refused("run hi", "top_p=2", "set in", "config.toml", config="top_p = 2"),
    refused("bench --shape nothere", "shape='nothere'", environment={"PELLUCID_MODEL": "models/tiny"}),
    refused("bench --shape nothere -m models/tiny", "MODEL='models/tiny' has no effect"),
    refused("run hi", "config.toml: not TOML", config="top_p = "),
    Typed("run --help", out=("--temperature",), loads="", config="top_p = "),
    # -- from Ollama
    refused("pull qwen9", "no such file or directory: qwen9"),
    refused("pull", "Missing argument 'NAME'"),
    Typed("list", err=("no models in",), exactly="", loads=""),
    Typed("ls --json", exactly="[]\n", loads=""),
    refused("ps", "in memory only while"),
    refused("rm qwen3", "qwen3: is not in", "it has no models"),
    refused("rm models/tiny", "outside of which nothing is deleted"),
    refused("show qwen3", "pellucid check", "pellucid plan"),
    refused('run models/tiny "hi" --format json', "--json"),
    refused('run models/tiny "hi" --keepalive 5m', "leave it out"),
    refused("info qwen3", "pellucid check"),
    refused("delete qwen3", "use pellucid rm"),
    refused("rm -f qwen3", "use --yes"),
    refused("run hi --hidethinking", "use --no-think"),
    refused("run hi --think=false", "a switch's opposite begins with --no-"),
    Typed("-v", out=("pellucid ",), loads=""),
    # -- from llama.cpp
    Typed(f'run -m there.gguf -p "{FRANCE}" -n 4 --raw --temp 0 -c 256 -t 1 -s 7 --top-k 40',
        exactly=" Paris.", loads="there.gguf"),
    Typed(f'run -m there.gguf -p "{FRANCE}" -n 4 --raw --temp 0 --ctx-size 256 --threads 1 --repeat-penalty 1.0',
        exactly=" Paris.", loads="there.gguf"),
    refused('run -m there.gguf -p "hi" -ngl 99', "-ngl", "use --device cuda"),
    refused('run -m there.gguf -p "hi" --n-predict 32', "--max-tokens"),
    refused('run -m there.gguf -p "hi" -no-cnv', "--raw"),
    refused('run -m there.gguf -p "hi" --n_predict 32', "use --max-tokens"),
    refused('run -m there.gguf -p "hi" --top_k 32', "use --top-k"),
    refused('run -m there.gguf -p "hi" --jinja', "leave it out"),
    refused("bench -m there.gguf -p 512 -n 128", "no such option: -p; use --prompt"),
    refused("llama-cli -m there.gguf", "use pellucid run"),
    Typed(f'run "{FRANCE}" -n 1 --seed=-1', err=("seed ",)),
    refused("run -hf ggml-org/gemma-3-1b-it-GGUF", "-hf", "owner/name"),
    refused('chat -m there.gguf -sys "Be brief."', "--system"),
    # -- from vLLM
    refused(f"complete {HUB_MODEL}", "pellucid run --raw"),
    refused(f'run {HUB_MODEL} "hi" --tensor-parallel-size 2', "mpirun -n 2"),
    refused(f'run {HUB_MODEL} "hi" --dtype bfloat16', "--dtype", "--quantization"),
    refused(f'run {HUB_MODEL} "hi" --trust-remote-code', "no code of a model is ever run"),
    refused("bench serve --model there.gguf", "use pellucid bench-serve"),
    refused(f"serve {HUB_MODEL} --served-model-name a", "use --model-name"),
    refused(f"serve {HUB_MODEL} --enforce-eager", "leave it out"),
    refused(f"serve {HUB_MODEL} --enable-auto-tool-choice --tool-call-parser hermes", "chat template"),
    refused(f'run {HUB_MODEL} "hi" --gpu-memory-utilization 0.9', "--kv-cache-memory"),
    # -- commands
    Typed("", 2, out=("Usage: pellucid COMMAND", "run", "chat", "bench"), loads=""),
    Typed("--help", out=("Usage: pellucid COMMAND", 'pellucid run "Once upon a time"'), loads=""),
    Typed("help", out=("Usage: pellucid COMMAND",), loads=""),
    Typed("help run", out=("Usage: pellucid run [OPTIONS] [MODEL] [PROMPT]",), loads=""),
    Typed("run -h", out=("-m, --model MODEL", "--quiet  "), never=("<bool>",), loads=""),
    Typed("--version", out=("pellucid ",), loads=""),
    Typed("serve --help", out=("--port",), loads=""),
    refused("rnu hi", "did you mean run?"),
    refused("quantize", "Missing argument 'IN'", "pellucid quantize --help"),
    refused("quantize qwen3:0.6b out", "in few bits already"),
    refused("quantize models/tiny", "Missing argument 'OUT'"),
    refused("trace", "Missing argument 'ACTION'", "record, replay, export"),
    refused("trace show", "'show' is not one of 'record', 'replay', 'export'", never=("Value error",)),
    refused("bench --repetitions many", "--repetitions many: must be a whole number"),
    refused("frobnicate", "there are run, chat"),
    refused('"Once upon a time"', 'pellucid run "Once upon a time"'),
    refused(HUB_MODEL, f"pellucid run {HUB_MODEL}"),
]  # fmt: skip


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: a model's directory, a .gguf file and a prompt."""
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "model.safetensors").touch()
    (tmp_path / "there.gguf").write_bytes(b"GGUF")
    (tmp_path / "prompt.txt").write_text(FRANCE + "\n")
    (tmp_path / "schema.json").write_text(
        '{"properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "type": "object",'
        ' "additionalProperties": false}'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("typed", TYPED, ids=lambda typed: typed.line or "nothing")
def test_typed(
    typed: Typed, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded: list[str | None] = []

    def load(config: EngineConfig, on_progress: object, **_: object) -> LoadedModel:
        assert config.model in SAME_MODEL
        loaded.append(config.model)
        return replace(bundled_model(), name=config.model or "pellucid-5m")

    monkeypatch.setattr("pellucid.engine.llm_engine.load_model", load)
    (desk / "config.toml").write_text(typed.config)
    monkeypatch.setenv("PELLUCID_CONFIG", str(desk / "config.toml"))
    for name, value in typed.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.stdin.encode()), "utf-8"))

    status = main(shlex.split(typed.line))

    out, err = capsys.readouterr()
    shown = f"{out}\n--- stderr\n{err}"
    assert status == typed.status, shown
    assert typed.exactly in (None, out), shown
    position = 0
    for text in typed.out:
        assert (position := out.find(text, position)) >= 0, f"{text!r} is not in its place: {shown}"
    for text in typed.err:
        assert text in err, f"{text!r} is missing: {shown}"
    for text in (*typed.never, "Traceback", "\x1b"):
        assert text not in out + err, shown
    if typed.loads == "":
        assert not loaded
    elif typed.status == 0:
        assert loaded == [typed.loads]
    if status == 2 and err:
        *_, line = err.splitlines()
        assert line.startswith("error: ") and err.count("error: ") == 1, shown
    if "-q" in shlex.split(typed.line):
        assert err == ""


def in_a_shell(line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A command line as a process of its own, with `pellucid` for this interpreter's."""
    command = line.replace("pellucid", f"{shlex.quote(sys.executable)} -m pellucid")
    return subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        check=False,
        timeout=120,
        env={"PATH": "/usr/bin:/bin", "PELLUCID_CONFIG": "", "LC_ALL": "C.UTF-8", **environment},
    )


RUN = f'pellucid run "{FRANCE}" {GREEDY}'


def test_closed_streams() -> None:
    done = in_a_shell(f"{RUN} 2>&-")
    assert (done.returncode, done.stdout) == (0, b" Paris.")
    done = in_a_shell(f"{RUN} >&-")
    assert done.returncode == 2
    assert done.stderr == b"error: stdout is closed: there is nowhere to write to\n"
    done = in_a_shell("pellucid run <&-")
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith(
        b"error: prompt: is empty"
    )
    done = in_a_shell(f"{RUN} <&- 2>&- >&-")
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


def test_a_full_disk_is_one_line() -> None:
    done = in_a_shell(f"{RUN} > /dev/full")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == b"error: No space left on device"


def test_a_mistyped_path_is_not_blamed_on_the_network(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("PELLUCID_CONFIG", "")
    assert main(["run", "modles/tiny", "hi"]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("error: model='modles/tiny': no such file or directory here")


def test_the_tab_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(words: str) -> dict[str, str]:
        """What a shell sets."""
        return {
            "_PELLUCID_COMPLETE": "complete_bash",
            "COMP_WORDS": f"pellucid {words}",
            "COMP_CWORD": str(len(words.split(" "))),
        }

    def completions(words: str) -> list[str]:
        for name, value in asked(words).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit, match=r"^0$"):
            main([])
        return capsys.readouterr().out.split()

    assert in_a_shell("pellucid", **asked("co")).stdout.split() == [b"compare"]
    assert "--temperature" in completions("run --te")
    assert completions("run --backend n") == ["numpy"]
    assert completions("run gpt-o") == ["gpt-oss:20b", "gpt-oss:120b"]
