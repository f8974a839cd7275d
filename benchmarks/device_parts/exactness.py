"""Parts that look for exactness: the tests, rows in steps of each length, draws."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from device_parts.common import FORMATS, PRODUCTS, Row, stored

ROOT = Path(__file__).parents[2]
ROW_COUNTS = (1, 2, 7, 16, 64, 257, 2048)


def tests(device: str) -> Iterator[Row]:
    """All tests of tests/device, on the device; several at a time where pytest-xdist is installed."""
    plugins = "-p", "no:cacheprovider", "-p", "no:benchmark"
    at_once = ("-n", str(min(12, os.cpu_count() or 1))) if find_spec("xdist") else ()
    command = (sys.executable, "-m", "pytest", "-q", *plugins, *at_once, "tests/device")
    environment = os.environ | {"PELLUCID_TEST_DEVICE": device}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    lines = done.stdout.strip().splitlines()
    yield Row("tests", "tests/device", lines[-1] if lines else done.stderr.strip()[-200:])
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            yield Row("tests", "", line)


def rows(device: str) -> Iterator[Row]:
    """Whether rows have the same bits in steps of each number of rows."""
    import numpy as np
    import torch

    from pellucid.backends.torch.backend import TorchBackend

    backend = TorchBackend(device)
    rng = np.random.default_rng(0)
    num_outputs, num_inputs = PRODUCTS["0.6B"]
    weight = rng.standard_normal((num_outputs, num_inputs)).astype(np.float32)
    x = backend.ops.from_host(rng.standard_normal((ROW_COUNTS[-1], num_inputs)).astype(np.float32))
    for name in FORMATS:
        handle = backend.weights.matrix(stored(backend, weight, name))
        whole = backend.ops.linear(x, handle)
        wrong = [
            count
            for count in ROW_COUNTS
            if not torch.equal(backend.ops.linear(x[-count:], handle), whole[-count:])
        ]
        yield Row("rows", f"linear, {name}", f"other bits at {wrong}" if wrong else "same bits")
    norm = backend.weights.vector(weight[0])
    whole = backend.ops.rms_norm(x, norm, 1e-6)
    wrong = [
        n
        for n in ROW_COUNTS
        if not torch.equal(backend.ops.rms_norm(x[-n:], norm, 1e-6), whole[-n:])
    ]
    yield Row("rows", "rms_norm", f"other bits at {wrong}" if wrong else "same bits")


def draws(device: str) -> Iterator[Row]:
    """Whether the device draws the host's tokens, and how long eight rows take."""
    import numpy as np
    import torch

    from pellucid.backends.drawing import DrawTable
    from pellucid.backends.torch.draws import draw_tokens
    from pellucid.backends.torch.memory import to_device
    from pellucid.execution.request_draws import RequestDraws
    from pellucid.execution.request_state import RequestState
    from pellucid.inputs.sampling_params import SamplingParams
    from pellucid.scheduling.request import Request

    vocab_size, num_rows = 151936, 8
    rng = np.random.default_rng(0)
    logits = (4 * rng.standard_normal((num_rows, vocab_size))).astype(np.float32)
    there, here = (to_device(logits, torch.device(place)) for place in (device, "cpu"))
    for params in (
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=1, temperature=0.7, top_k=50, top_p=0.9, min_p=0.01),
    ):
        table = DrawTable()
        for row in range(num_rows):
            request = Request(
                request_id=str(row),
                prompt_token_ids=(1,),
                params=params,
                seed=row + 1,
                arrival_time=0.0,
                max_tokens=1,
                eos_token_ids=frozenset(),
                bad_words_token_ids=(),
                index=0,
            )
            RequestDraws(RequestState(request.started()), vocab_size).add_to(table, row, 0)
        found, wanted = (draw_tokens(each, table) for each in (there, here))
        started = time.perf_counter()
        draw_tokens(there, table)
        microseconds = (time.perf_counter() - started) * 1e6
        end = "the host's tokens" if found == wanted else f"OTHER TOKENS: {found}, {wanted}"
        what = f"top_k {params.top_k}, top_p {params.top_p}"
        yield Row("draws", what, f"{end}; {num_rows} rows in {microseconds:.0f} us")
