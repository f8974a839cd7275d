"""`pellucid run --beam-width` with the fake model."""

import json

from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import RequestOutput
from support.command_line import CommandLine, InterruptedDecoder
from support.fake_model import fake_engine
from support.refusals import check_refusals

RUN = ("run", "h e y", "--max-tokens", "9", "--beam-width", "3")


def search(**params: object) -> RequestOutput:
    engine = fake_engine()
    output = engine.add_request("h e y", BeamSearchParams(beam_width=3, max_tokens=9, **params))
    while not output.finished:
        engine.step()
    return output


def test_stdout_is_the_best_text(pellucid: CommandLine) -> None:
    ran = pellucid(*RUN, "--length-penalty", "2", "--early-stopping", "never")
    best = search(length_penalty=2, early_stopping="never").outputs[0]
    assert (ran.status, ran.out) == (0, best.text)
    assert ran.err.endswith(f" · beam width 3, length penalty 2, score {best.score:.4f}\n")
    assert pellucid.loaded[0].max_num_seqs == 3


def test_json_has_all_that_was_found(pellucid: CommandLine) -> None:
    ran = pellucid(*RUN, "--json", "--early-stopping", "true", "--stop-token-id", "5")
    found = search(early_stopping=True, stop_token_ids=[5]).outputs
    result = json.loads(ran.out)
    assert result["text"] == found[0].text
    assert [beam["score"] for beam in result["beams"]] == [one.score for one in found]
    assert [beam["token_ids"] for beam in result["beams"]] == [one.token_ids for one in found]
    assert result["parameters"]["early_stopping"] is True


def test_penalties_are_the_models_own_unless_given(pellucid: CommandLine) -> None:
    pellucid.defaults = SamplingParams(repetition_penalty=1.5, temperature=0.6, top_k=20)
    assert pellucid(*RUN).out == search(repetition_penalty=1.5).outputs[0].text
    given = pellucid(*RUN, "--repetition-penalty", "1.1")
    assert given.out == search(repetition_penalty=1.1).outputs[0].text


def test_an_interrupt_ends_the_search(pellucid: CommandLine) -> None:
    pellucid.decoder = InterruptedDecoder(3)
    ran = pellucid(*RUN)
    assert ran.out == ""
    assert "stop: Ctrl-C" in ran.err and "score" not in ran.err


REFUSED: list[tuple[str, ...]] = [
    ("--temperature", "0.5"),
    ("--top-p", "0.5"),
    ("--seed", "0"),
    ("--presence-penalty", "1"),
    ("--stop", "x"),
    ("--include-stop",),
    ("--max-time", "1"),
    ("--json", "--logprobs", "2"),
    ("--early-stopping", "no"),
    ("--beam-width", "65"),
]


def test_what_is_refused(pellucid: CommandLine) -> None:
    check_refusals("run_beams", REFUSED, lambda options: pellucid.refuse(*RUN, *options))
    assert pellucid.loaded == []  # before anyone waits for weights


def test_options_of_a_search_need_a_width(pellucid: CommandLine) -> None:
    ran = pellucid("run", "h e y", "--early-stopping", "true")
    assert ran.status == 2 and "early_stopping='true': needs --beam-width" in ran.err
