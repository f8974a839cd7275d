"""The load of bench-serve: lengths, arrivals, prompts, and the arithmetic of percentiles and goodput."""

import asyncio
import statistics
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import pytest
import uvloop

from pellucid.benchmark.load.result import LoadResult, Outcome, ServiceLevel, Spread
from pellucid.benchmark.load.sender import Reply, Target
from pellucid.benchmark.load.tasks import sleep_until
from pellucid.benchmark.load.traffic import Lengths, PromptWriter, Traffic
from pellucid.server_client import ServerClient, ServerError
from support.refusals import check_refusals

MANY = Traffic(2000, Lengths.parse("p", "32-64"), Lengths.parse("o", "100:400"), rate=5.0)


def outcome(sent: float, *after: float, failure: str | None = None) -> Outcome:
    """One token at each time after sending."""
    times = tuple(sent + each for each in after)
    ended = times[-1] if times else sent
    return Outcome(sent, sent, times, ended, len(times), failure=failure)


def test_lengths_are_drawn_as_they_are_written() -> None:
    planned = MANY.requests()
    prompts = [request.num_prompt_tokens for request in planned]
    outputs = sorted(request.num_output_tokens for request in planned)
    assert (min(prompts), max(prompts)) == (32, 64)
    assert statistics.mean(prompts) == pytest.approx(48, rel=0.03)
    assert statistics.median(outputs) == pytest.approx(100, rel=0.1)
    assert outputs[len(outputs) * 95 // 100] == pytest.approx(400, rel=0.15)
    assert Lengths.parse("p", "7") == Lengths(7, 7)


def test_lengths_numbers_and_urls_that_are_refused() -> None:
    lengths = ("", "0", "3-2", "5:5", "-1", "1.5", "1-2-3", "x")
    check_refusals("load_lengths", lengths, partial(Lengths.parse, "--prompt-tokens"))
    numbers = ({"num_requests": 0}, {"rate": 0.0}, {"rate": float("nan")}, {"num_prefixes": 0})
    check_refusals("load_numbers", numbers, lambda wrong: replace(MANY, **wrong))
    urls = ("localhost:8000", "ftp://host", "http://", "http://host/?key=1")
    check_refusals("load_urls", urls, ServerClient)


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    due = [request.due for request in MANY.requests()]
    gaps = [later - earlier for earlier, later in pairwise(due)]
    assert due[0] == 0 and min(gaps) > 0
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.1)


def test_a_seed_gives_the_same_traffic_and_the_rate_changes_only_the_times() -> None:
    assert MANY.requests() == MANY.requests()
    assert replace(MANY, seed=1).requests() != MANY.requests()
    faster = replace(MANY, rate=50.0).requests()
    assert [replace(request, due=0) for request in faster] == [
        replace(request, due=0) for request in MANY.requests()
    ]
    assert {request.due for request in replace(MANY, rate=None).requests()} == {0.0}


def test_prompts_share_their_prefix_and_nothing_else() -> None:
    traffic = replace(MANY, num_requests=40, prefix_tokens=60, num_prefixes=2)
    writer = PromptWriter.fitted(traffic, [(16, 42), (64, 138)])  # 2 tokens a word and 10 more
    assert (writer.tokens_per_word, writer.overhead) == (2.0, 10.0)
    planned = traffic.requests()
    texts = [writer.write(request).split() for request in planned]
    for request, text in zip(planned, texts, strict=True):
        assert len(text) == 30 + round((request.num_prompt_tokens - 10) / 2)
    assert len({tuple(text[:30]) for text in texts}) == 2
    assert len({tuple(text[30:]) for text in texts}) == 40


def test_no_request_is_sent_before_it_is_due() -> None:
    async def seconds_late(due: float) -> float:
        start = time.monotonic()

        def now() -> float:
            return time.monotonic() - start

        await sleep_until(due, now)
        return now() - due

    async def wait_in_turn() -> list[float]:
        return [await seconds_late(tenths / 1e4) for tenths in (-10, *range(60))]

    assert (
        min(uvloop.run(wait_in_turn())) >= 0
    )  # the server's loop, whose sleeps are whole milliseconds


def test_times_of_an_answer() -> None:
    one = outcome(10.0, 0.5, 0.6, 1.1)
    assert one.first_token_seconds == 0.5
    assert one.gaps == pytest.approx([0.1, 0.5])
    assert one.seconds_per_token == pytest.approx(0.3)
    # Two pieces of three tokens each
    assert replace(
        one, chunk_times=(10.5, 11.0), num_output_tokens=6
    ).seconds_per_token == pytest.approx(0.1)
    assert outcome(0.0, 1.0).seconds_per_token is None
    assert outcome(0.0).first_token_seconds is None


def test_percentiles_are_interpolated() -> None:
    spread = Spread.of([float(value) for value in range(101)])
    assert spread == Spread(50.0, (50.0, 90.0, 95.0, 99.0), 100.0)
    assert Spread.of([1.0, 2.0]) == Spread(1.5, pytest.approx((1.5, 1.9, 1.95, 1.99)), 2.0)
    assert Spread.of([]) is None


def test_goodput_counts_whole_answers_within_both_limits() -> None:
    outcomes = [
        outcome(0.0, 0.1, 0.2),  # good
        outcome(0.0, 0.3, 0.4),  # first token late
        outcome(0.0, 0.1, 1.0),  # second token late
        outcome(2.0, 0.2),  # good: at the limit, and nothing between tokens
        outcome(1.0, 0.1, 0.2, failure="aborted"),
        outcome(1.0, failure="HTTP 429"),
    ]
    result = LoadResult(outcomes, ServiceLevel(0.21, 0.5))
    assert result.num_good == 2
    assert result.seconds == pytest.approx(2.2)
    assert result.per_second(result.num_good) == pytest.approx(2 / 2.2)
    assert result.failures == {"aborted": 1, "HTTP 429": 1}
    assert result.num_output_tokens == 7  # of whole answers
    assert LoadResult(outcomes, ServiceLevel()).num_good == 4
    with pytest.raises(ValueError, match=r"itl_slo=0\.0: must be above 0"):
        ServiceLevel(inter_token=0.0)


def test_nothing_came() -> None:
    result = LoadResult([], ServiceLevel())
    assert (result.seconds, result.per_second(0), result.largest_delay) == (0.0, 0.0, 0.0)
    assert set(result.spreads().values()) == {None}


def test_words_are_counted_by_replies_that_are_not_streamed() -> None:
    """llama-cpp-python's server counts no tokens in streams: prompts once had four times the tokens asked for."""

    class Server:
        async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            assert path == "/v1/completions" and "stream" not in body
            return {"usage": {"prompt_tokens": 4 * len(body["prompt"].split()) + 2}}

    traffic = Traffic(1, Lengths.parse("p", "202"), Lengths.parse("o", "1"))
    target = Target(cast(ServerClient, Server()), "m", api="completions")
    writer = asyncio.run(target.prompt_writer(traffic))
    assert (writer.tokens_per_word, writer.overhead) == (4, 2)
    assert len(writer.write(traffic.requests()[0]).split()) == 50


def test_a_reply_is_read_as_it_comes() -> None:
    reply = Reply()
    reply.take('{"choices": [{"delta": {"role": "assistant", "content": ""}}]}', 1.0)
    reply.take('{"choices": [{"delta": {"reasoning_content": "Hm"}}]}', 2.0)
    reply.take('{"choices": [{"text": "x", "finish_reason": "length"}]}', 3.0)
    assert (reply.chunk_times, reply.has_ended, reply.num_output_tokens) == ([2.0, 3.0], True, 2)
    usage = '{"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": null}'
    reply.take(f'{{"choices": [], "usage": {usage}}}', 4.0)
    assert (reply.num_prompt_tokens, reply.num_output_tokens) == (9, 5)
    assert reply.num_cached_tokens is None
    with pytest.raises(ServerError, match="out of memory"):
        reply.take('{"error": {"message": "out of memory"}}', 5.0)
    with pytest.raises(ServerError, match="not JSON"):
        reply.take("{", 5.0)


def test_a_key_that_cannot_be_sent_is_not_shown() -> None:
    with pytest.raises(ValueError, match="API key") as refused:
        ServerClient("http://127.0.0.1:1", "geheim\n")
    assert "geheim" not in str(refused.value)
