"""Stages that end, stop, come back, or are not what the engine needs."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from pellucid import __version__
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.stage_address import StageAddress
from pellucid.outputs import RequestOutput
from pellucid.stages.link import StageLink
from pellucid.stages.messages import Alive, Hello, ToStage, decode_to_stage, encode
from pellucid.stages.wire import shake_hands
from support.checkpoints import write_checkpoint
from support.stage_process import StageProcess
from support.stages import KEY, stage, write_key

LONG = SamplingParams(temperature=0.8, seed=3, max_tokens=2000, ignore_eos=True)
SHORT = replace(LONG, max_tokens=20)
PROMPT = list(range(5, 70))
DEADLINE = 120.0  # seconds, however slow the machine


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def run(engine: LLMEngine, params: SamplingParams = SHORT) -> RequestOutput:
    output = engine.add_request(PROMPT, params)
    while not output.finished:
        engine.step()
    return output


@pytest.fixture
def key(tmp_path: Path) -> str:
    return write_key(tmp_path)


@pytest.fixture
def start(key: str) -> Iterator[Callable[..., StageProcess]]:
    """Starts processes that end with the test."""
    with ExitStack() as stack:

        def start_one(port: int = 0) -> StageProcess:
            process = StageProcess(key, port)
            stack.callback(process.kill)
            return process

        yield start_one


def test_an_engine_shows_its_key_at_once() -> None:
    """A stage does not wait long for a first message, and an engine may read files before it asks for anything."""
    received: list[ToStage] = []

    def serve() -> None:
        end, _ = listener.accept()
        wire = shake_hands(end, KEY, is_engine=False)
        wire.send(encode(Hello(__version__)))
        received.append(decode_to_stage(wire.receive()))
        wire.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        link = StageLink(StageAddress("127.0.0.1", listener.getsockname()[1]), KEY)
        thread.join()
        link.close()
    assert received == [Alive()]


def engine_on(key: str, *stages: StageProcess) -> LLMEngine:
    addresses = ",".join(each.address for each in stages)
    return LLMEngine.from_config(
        EngineConfig(stages=addresses, stages_key=key, num_threads=1, speculation="off")
    )


def expected() -> RequestOutput:
    return run(LLMEngine.from_config(EngineConfig(num_threads=1)))


def is_back(engine: LLMEngine) -> bool:
    assert engine.model.elsewhere is not None
    return all(stage.link.is_there for stage in engine.model.elsewhere._stages)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_stage_ends_in_the_middle(how: int, key: str, start: Callable[..., StageProcess]) -> None:
    """Its requests end with an error that names it; when another process listens there, the engine serves again."""
    first, second = start(), start()
    with closing(engine_on(key, first, second)) as engine:
        outputs = [engine.add_request([each, *PROMPT], LONG) for each in range(3)]
        while not all(output.outputs[0].token_ids for output in outputs):
            engine.step()
        os.kill(second.pid, how)
        begin = time.monotonic()
        while engine.has_unfinished_requests:
            engine.step()
        print(f"{time.monotonic() - begin:.2f} s")
        for output in outputs:
            assert output.outputs[0].finish_reason == "error"
            assert f"stage {second.address} is away" in str(output.outputs[0].stop_reason)
        engine.scheduler.check_integrity()
        away = run(engine)
        assert away.outputs[0].finish_reason == "error"
        second.kill()
        start(second.port)
        wait_until(lambda: is_back(engine))
        again = run(engine)
        assert again.outputs[0] == expected().outputs[0]


def test_a_stage_ends_while_nobody_asks(key: str, start: Callable[..., StageProcess]) -> None:
    """No request fails, and none uses blocks that are gone."""
    only = start()
    with closing(engine_on(key, only)) as engine:
        wanted = run(engine)
        assert run(engine).num_cached_tokens > 0
        only.kill()
        wait_until(lambda: not is_back(engine))
        start(only.port)
        wait_until(lambda: is_back(engine))
        again = run(engine)
        assert again.outputs == wanted.outputs
        assert again.num_cached_tokens == 0


def test_a_stage_serves_one_engine_after_the_other(
    key: str, start: Callable[..., StageProcess]
) -> None:
    only, wanted = start(), expected().outputs
    for _ in range(2):
        with closing(engine_on(key, only)) as engine:
            assert run(engine).outputs == wanted


def test_what_a_stage_must_be(key: str, tmp_path: Path) -> None:
    """Another key, other weights, nobody there, more stages than layers: a sentence says so before anything loads."""
    model = write_checkpoint(tmp_path / "model", "llama")
    other = write_checkpoint(tmp_path / "other", "llama", seed=1)

    def load(addresses: str, **settings: object) -> LLMEngine:
        config = EngineConfig(model=str(model), stages=addresses, stages_key=key, **settings)
        return LLMEngine.from_config(config)

    with (
        stage(model, b"another secret of 16 bytes or more") as address,
        pytest.raises(ValueError, match=f"stages: {address}: .*both sides need the same one"),
    ):
        load(str(address))
    with pytest.raises(ValueError, match=f"stages: {address}: Connection refused"):
        load(str(address))
    with (
        stage(other) as address,
        pytest.raises(ValueError, match=f"stages: {address}: .*weights is .* there and"),
    ):
        load(str(address))
    with stage(model) as address:
        with pytest.raises(ValueError, match="3 layers cannot be divided into 2 parts of 7, any"):
            load(f"{address}/7")
        with pytest.raises(ValueError, match=r"of memory of stage .* are available"):
            load(str(address), num_kv_blocks=1 << 30)
        engine = load(str(address))
        with pytest.raises(ValueError, match="can be no other"):
            LLMEngine(engine.config, engine.model)
        assert run(engine).outputs[0].finish_reason == "length"
        engine.close()
