"""Replicas of which each has a stage: a lost stage costs its requests a pause, and no answer."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from pellucid.cli.serve import groups_of_stages
from pellucid.cluster.replica_pool import plan_replica_of_stages
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import load_without_weights
from support.replicas import (
    Asked,
    RunningPool,
    answers_of_one_engine,
    compare,
    random_requests,
    read_whole,
)
from support.stage_process import StageProcess
from support.stages import write_key


def test_a_lost_stage_is_a_pause(tmp_path: Path) -> None:
    """Its requests go on in the other replica, to the last bit; when the stage listens again its replica is back."""
    long = SamplingParams(temperature=0.8, seed=3, max_tokens=400, ignore_eos=True)
    asked = [
        *random_requests(20, seed=4),
        *(Asked(f"{number} keys", long, None) for number in range(8)),
    ]
    expected = answers_of_one_engine(asked)
    key = write_key(tmp_path)
    with ExitStack() as stack:

        def start(port: int = 0) -> StageProcess:
            stage = StageProcess(key, port)
            stack.callback(stage.kill)
            return stage

        stages = [start(), start()]
        pool = RunningPool.of_stages([each.address for each in stages], key, num_kv_blocks=400)
        stack.callback(pool.close)

        async def answers() -> list[object]:
            streams = [await pool.add(each) for each in asked]
            await pool.until_tokens(40)
            stages[0].kill()
            found = [await read_whole(stream) for stream in streams]
            start(stages[0].port)
            await pool.until_all_are_ready()
            return found

        compare(pool.run(answers()), expected)
        assert pool.pool.num_failovers > 0 and pool.pool.num_restarts == 1
        compare(pool.run(pool.answers(asked)), expected)


def test_what_replicas_of_stages_need() -> None:
    assert groups_of_stages(None, 2) == []
    assert groups_of_stages("a:1,b:2; c:3", 2) == ["a:1,b:2", "c:3"]
    for stages, num_replicas in (("a:1,b:2", 2), ("a:1;b:2", 1)):
        with pytest.raises(ValueError, match=r"^stages='a:1.b:2': has the stages of \d replicas, "):
            groups_of_stages(stages, num_replicas)
    config = EngineConfig(stages="a:1", stages_key="key")
    with pytest.raises(ValueError, match="kv_cache_memory or num_kv_blocks says how large"):
        plan_replica_of_stages(config, load_without_weights(config))
