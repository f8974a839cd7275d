"""Ledgers on the bundled model with the real clock: they add up to the caller's wall time."""

import math
import statistics
import time

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.ledger import Part
from support.bundled import bundled_engine, prompts_of_all_kinds


def test_ledgers_are_the_wall_time_of_their_requests() -> None:
    engine = bundled_engine(
        block_size=16,
        max_model_len=256,
        num_kv_blocks=20,
        max_num_seqs=8,
        max_num_batched_tokens=64,
    )
    params = SamplingParams(max_tokens=24, ignore_eos=True, temperature=0)
    started, ended, outputs = {}, {}, []
    for prompt in prompts_of_all_kinds(40):
        now = time.monotonic()
        outputs.append(engine.add_request(prompt, params))
        started[outputs[-1].request_id] = now
    while engine.has_unfinished_requests:
        deltas = engine.step()
        now = time.monotonic()
        ended.update({delta.request_id: now for delta in deltas if delta.finish_reason is not None})

    shares = []
    for output in outputs:
        ledger = output.ledger
        assert ledger is not None
        parts = {part: ledger.seconds(part) for part in Part}
        assert math.isclose(math.fsum(parts.values()), ledger.total_seconds, rel_tol=1e-9)
        wall = ended[output.request_id] - started[output.request_id]
        assert ledger.total_seconds <= wall
        shares.append(ledger.total_seconds / wall)
        assert all(parts[part] > 0 for part in (Part.TOKENIZE, Part.PREFILL, Part.DECODE))
    # One request may lose the processor just before its caller looks at the clock; not most.
    assert statistics.median(shares) > 0.99
    ledgers = [output.ledger for output in outputs if output.ledger is not None]
    assert any(ledger.stalled_by for ledger in ledgers)
    assert any(ledger.blocked_by for ledger in ledgers)
    assert any(ledger.preempted_seconds for ledger in ledgers)
