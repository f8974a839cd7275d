"""`pellucid ...` in this process, around the fake model."""

import io
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pellucid.backends.ops import ForwardBatch, HostArray, KVCache
from pellucid.cli import main
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.prompts import ChatPrompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.llm import LLM
from pellucid.loaded_model import LoadedModel
from pellucid.text.responses.format import ResponseFormat
from support.fake_model import FakeBackend, FakeDecoder, FakeTokenizer, fake_model_config


@dataclass(frozen=True)
class Ran:
    """What a command line left behind; `err` is stderr without the line of the memory plan."""

    status: int
    out: str
    err: str
    memory: str


class ChatTokenizer(FakeTokenizer):
    """A conversation is "u", a question, "!", "a", an answer, "!", and so on."""

    has_chat_template = True
    response_format = ResponseFormat("text", None, None, {})

    def chat_template_mentions(self, variable: str) -> bool:
        return False

    def render_chat(self, prompt: ChatPrompt) -> str:
        return ""

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> list[int]:
        text = "".join(f"{message['role'][0]}{message['content']}!" for message in messages)
        return self.encode(text + "a" * add_generation_prompt)

    def encode_conversation(
        self, prompt: ChatPrompt, max_model_len: int | None = None
    ) -> list[int]:
        return self.encode_chat(prompt.messages, bool(prompt.add_generation_prompt))


class InterruptedDecoder(FakeDecoder):
    """Ctrl-C is pressed while these forwards run, counted from 0."""

    def __init__(self, *forwards: int) -> None:
        super().__init__()
        self.forwards = forwards

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> HostArray:
        for _ in range(self.forwards.count(len(self.batches))):
            signal.raise_signal(signal.SIGINT)
        return super().forward(batch, kv_cache)


@dataclass
class CommandLine:
    """Calls `main`. Attributes may be changed before a call."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    decoder: FakeDecoder = field(default_factory=FakeDecoder)
    context_length: int = 256
    defaults: SamplingParams = field(default_factory=SamplingParams)
    loaded: list[EngineConfig] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    def llm(self, **knobs: object) -> LLM:
        """What the verbs work with."""
        self.monkeypatch.setattr("pellucid.engine.llm_engine.load_model", self._load)
        return LLM(on_progress=lambda done, total: None, **knobs)

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Ran:
        if "PELLUCID_CONFIG" not in os.environ:  # whoever runs the tests may have one
            self.monkeypatch.setenv("PELLUCID_CONFIG", "")
        self.monkeypatch.setattr("pellucid.engine.llm_engine.load_model", self._load)
        # However slow the machine: no line of progress among those that tests expect.
        self.monkeypatch.setattr("pellucid.progress.FIRST_LINE", 3600.0)
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        status = main(arguments)
        out, err = self.capsys.readouterr()
        lines = err.splitlines(keepends=True)
        memory = [line for line in lines if line.startswith("memory: ")]
        return Ran(
            status, out, "".join(line for line in lines if line not in memory), "".join(memory)
        )

    def refuse(self, *arguments: str) -> None:
        """Raises the one line of a command line that is an error, for `check_refusals`."""
        ran = self(*arguments)
        assert (ran.status, ran.out) == (2, "")
        (line,) = ran.err.splitlines()
        raise ValueError(line)

    def _load(self, config: EngineConfig, on_progress: Any, **_: Any) -> LoadedModel:
        self.loaded.append(config)
        for done in (0, 50, 100):
            on_progress(done, 100)
        return LoadedModel(
            "fake",
            Path("fake"),
            fake_model_config(self.context_length),
            self.decoder,
            ChatTokenizer(),
            FakeBackend(),
            self.defaults,
            notes=self.notes,
        )
