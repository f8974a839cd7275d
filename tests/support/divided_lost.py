"""Run by mpirun: loses rank 1 in the middle of a request, and tells what rank 0 says of it.

    python -m support.divided_lost SIGNAL DIRECTORY

SIGNAL is the number of the signal that rank 1 gets. Rank 0 writes `ends` into DIRECTORY: JSON of the seconds until the
requests had ended, and of the reason of each request, that of a later one at the end.
"""

import json
import os
import sys
import time
from pathlib import Path

from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams

PROMPT = list(range(5, 70))
LONG = SamplingParams(temperature=0.8, seed=3, max_tokens=1500, ignore_eos=True)


def main() -> None:
    signal, directory = int(sys.argv[1]), Path(sys.argv[2])
    (directory / f"pid{os.environ['OMPI_COMM_WORLD_RANK']}").write_text(str(os.getpid()))
    engine = LLMEngine.from_config(
        EngineConfig(tensor_parallel_size=2, num_threads=1, speculation="off")
    )
    outputs = [engine.add_request([each, *PROMPT], LONG) for each in range(3)]
    while not all(output.outputs[0].token_ids for output in outputs):
        engine.step()
    os.kill(int((directory / "pid1").read_text()), signal)
    begin = time.monotonic()
    while engine.has_unfinished_requests:
        engine.step()
    seconds = time.monotonic() - begin
    engine.scheduler.check_integrity()
    outputs.append(engine.add_request(PROMPT, LONG))
    while engine.has_unfinished_requests:
        engine.step()
    ends = [[each.outputs[0].finish_reason, str(each.outputs[0].stop_reason)] for each in outputs]
    (directory / "ends").write_text(json.dumps([seconds, ends]))
    engine.close()


if __name__ == "__main__":
    main()
