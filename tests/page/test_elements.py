"""Each of the 29 elements that lessons on inference describe is on the page, and the engine drives it; axe is content.

One walk through all views, as the screenshots take it, answers for all tests of this file. docs/page.md lists the
elements for readers.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from page.browser import wait_until
from page.conftest import opened_page
from page.screenshots import THEMES, VIEWS, prepared_pages, show

try:
    from playwright.sync_api import Error as PlaywrightError
except ImportError:  # conftest.py skips the tests then
    PlaywrightError = AssertionError  # type: ignore[assignment,misc]

AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
DOCS = Path(__file__).parents[2] / "docs/page.md"
SECONDS = 60  # a limit against hangs

Check = Callable[[Any], None]


def has(selector: str, *texts: str) -> Check:
    """What a selector finds has each of some texts in it."""

    def check(page: Any) -> None:
        page.locator(selector).first.wait_for(timeout=1000 * SECONDS)
        wait_until(
            page,
            "([selector, texts]) => {"
            " const all = [...document.querySelectorAll(selector)].map((each) => each.innerText);"
            " return texts.every((text) => all.join(' ').includes(text)); }",
            [selector, list(texts)],
            SECONDS,
        )

    return check


def has_many(selector: str, least: int) -> Check:
    def check(page: Any) -> None:
        wait_until(
            page,
            "([selector, least]) => document.querySelectorAll(selector).length >= least",
            [selector, least],
            SECONDS,
        )

    return check


def shows_facts(*labels: str) -> Check:
    """Large numbers, each with its origin."""

    def check(page: Any) -> None:
        for label in labels:
            fact = page.locator(".fact", has=page.locator("dt", has_text=label)).first
            fact.locator(".badge").wait_for(timeout=1000 * SECONDS)
            assert re.search(r"\d", fact.locator("dd").inner_text())

    return check


def a_text_appears(page: Any) -> None:
    """An example is run: at the moment of each token the text ends with it; then a chip tells why it stopped."""
    page.get_by_role("button", name="The capital of France is").click()
    page.locator("#run:not([disabled])").click()
    wait_until(
        page,
        "() => { const run = pellucid.request.value; return run?.ledger && run.tokens.length >= 3"
        " && [...document.querySelectorAll('.t.prompt')].some((each) => each.innerText.includes('France')); }",
        None,
        SECONDS,
    )
    for count in (1, 2, 3):
        page.evaluate(
            "count => pellucid.cursor.seek(pellucid.request.value.tokenSeqs[count - 1])", count
        )
        wait_until(
            page,
            "count => document.querySelectorAll('.t:not(.prompt)').length === count",
            count,
            SECONDS,
        )
    page.keyboard.press("End")
    has(".ending .chip", "stopped: ")(page)


def another_temperature_redraws_the_funnel(page: Any) -> None:
    page.locator(".knobs summary", has_text="other parameters").click()
    slider = page.locator(".knobs", has_text="other parameters").get_by_label("temperature")
    slider.focus()
    slider.press("End")
    has(".why", "With these parameters")(page)
    page.get_by_role("button", name="as it was").click()


def a_head_is_looked_at(page: Any) -> None:
    has_many(".read-list li:not(.apart)", 3)(page)
    page.keyboard.press("}")
    has(".why", "head 0")(page)
    page.get_by_role("button", name="attention: counted").click()
    has(".origin:popover-open .formula", "softmax(q·Kᵀ / √d)·V")(page)
    page.keyboard.press("Escape")
    wait_until(page, "!document.querySelector(':popover-open')", None, SECONDS)


CACHED = """() => {
  const fact = [...document.querySelectorAll(".fact")].find((each) => each.innerText.startsWith("in the cache"));
  return Number(fact.querySelector("dd").firstChild.textContent.replace(",", ""));
}"""


def the_cache_grows_token_by_token(page: Any) -> None:
    """After prefill it holds the prompt; each further token adds the one before it."""
    page.evaluate("""() => {
      const request = pellucid.request.value;
      pellucid.cursor.seek(request.tokenSeqs[1] - 1);  // all that the first token caused has happened
    }""")
    has(".stepper output", "1 of ", "prefill chose")(page)
    wait_until(page, f"({CACHED})() === pellucid.request.value.added.prompt_tok", None, SECONDS)
    before = page.evaluate(CACHED)
    page.get_by_role("button", name="a token on").click()
    has(".stepper output", "2 of ", "decode chose")(page)
    wait_until(page, f"({CACHED})() === {before + 1}", None, SECONDS)
    has_many(".table-map li", 1)(page)
    page.keyboard.press("End")


def a_step_back_says_what_came_from_the_cache(page: Any) -> None:
    has_many(".written .small", 2)(page)
    page.keyboard.press(",")
    texts = page.locator(".written .small").all_inner_texts()
    assert ", none from the cache" not in texts[0]
    assert "from the cache" in texts[0]
    assert "none from the cache" in texts[1]
    assert page.locator(".code li.lit").count() == 2
    page.keyboard.press("Escape")


def the_curves_have_tables(page: Any) -> None:
    assert page.locator(".curves h3").all_inner_texts() == [
        "time of each token",
        "tokens passed through the model, so far",
        "operations so far",
        "keys and values kept after the step",
    ]
    page.keyboard.press("t")
    has_many(".curves .twin tbody tr", 40)(page)
    page.keyboard.press("t")


def a_long_prompt_is_planned(page: Any) -> None:
    first = page.locator(".fact", has_text="first token").locator("dd")
    before = first.inner_text()
    page.get_by_role("button", name="100,000 tokens").click()
    has(".plan-ask output", "100,000 tokens")(page)
    wait_until(
        page,
        "before => [...document.querySelectorAll('.fact')].some((each) => each.innerText.startsWith('first token')"
        " && each.querySelector('dd').innerText !== before)",
        before,
        SECONDS,
    )


def tokens_in_the_cache_climb_by_one(page: Any) -> None:
    has_many(".run-steps tbody tr", 2)(page)
    cells = page.locator(".run-steps tbody td:nth-child(5)").all_inner_texts()
    assert [int(cell) for cell in cells] == list(range(int(cells[0]), int(cells[0]) + len(cells)))
    passes = page.locator(".run-steps tbody td:first-child").all_inner_texts()
    assert passes == ["prefill", *["decode"] * (len(passes) - 1)]


@dataclass(frozen=True)
class Element:
    """Something that lessons describe.

    Attributes:
        checks: by the picture of `prepared_pages` in which the element is seen.
    """

    number: int
    name: str
    checks: dict[str, Check]


ELEMENTS = [
    Element(1, "a text that is written token by token", {"generate": a_text_appears}),
    Element(2, "prefill, then decode", {"learn-one-token": tokens_in_the_cache_climb_by_one}),
    Element(
        3,
        "a cache that fills; what keys and values are",
        {
            "cache": has_many(".table-map, .stepper", 2),
            "learn-keys-values": has(".lesson-text", "what it is about", "what it has to tell"),
        },
    ),
    Element(4, "with the cache and without", {"compare": has(".why", "costs memory and saves")}),
    Element(
        5,
        "bytes of a token, and how long a text may be",
        {"plan": shows_facts("a token's keys and values", "longest text alone")},
    ),
    Element(
        6,
        "latency, throughput, cost; a short chat and a long document",
        {
            "plan": a_long_prompt_is_planned,
            "serve": has(".figures", "first token, p50", "output", "a million tokens"),
        },
    ),
    Element(7, "temperature", {"generate": another_temperature_redraws_the_funnel}),
    Element(
        8,
        "where a cache is used, a fun fact, questions",
        {
            "learn-keys-values": has(
                ".lesson-text", "It is used wherever", "kv-heads, numbers of a head]"
            ),
            "learn-questions": has(".panel", "Where is a KV cache used?", "Fun fact."),
        },
    ),
    Element(
        9,
        "a challenge with before and after",
        {
            "learn-challenge": has(".lesson", "before", "after", "times", "Right."),
            "learn-record": has(".record", "Challenge", " and not "),
        },
    ),
    Element(
        10,
        "attention: formula, heads, what each word weighs",
        {
            "generate": a_head_is_looked_at,
            "learn-attention": has(".head-formula", "softmax(q·Kᵀ / √", "query", "weight", "value"),
        },
    ),
    Element(
        11,
        "probabilities of candidate words",
        {
            "generate": has_many(".candidates tbody tr", 6),
            "learn-choosing": has_many(".candidates tbody tr", 6),
        },
    ),
    Element(
        12, "the cache after a prompt and after a word", {"cache": the_cache_grows_token_by_token}
    ),
    Element(
        13,
        "work with and without a cache, and what follows from it",
        {
            "compare": has(".figures", "tokens passed", "operations", "bytes moved"),
            "plan": shows_facts("tokens passed, an answer"),
            "learn-numbers": has(
                ".corrections", "Heads that share keys", "Attention still looks at every pair"
            ),
        },
    ),
    Element(14, "a counter that climbs", {"learn-one-token": tokens_in_the_cache_climb_by_one}),
    Element(
        15,
        "batching, formats of the cache, paging, speculation",
        {
            "serve": has(".view-serve h3", "static", "continuous"),
            "compare-kv_dtype": has(".figures", "bf16", "int8", "int4"),
            "cache": shows_facts("owned", "kept for later", "free"),
            "speculate": has(".why", "tokens are the same"),
        },
    ),
    Element(
        16,
        "what an operator watches; questions of readers",
        {"serve": has_many(".watch li", 3), "learn-questions": has_many(".questions dt", 9)},
    ),
    Element(
        17,
        "how long it takes and for whom",
        {"learn-one-token": has(".steps .about", "20 minutes", "no background needed")},
    ),
    Element(
        18,
        "a stepper: token, stage, cached tokens, bytes, contents",
        {
            "cache": shows_facts("in the cache", "bytes", "blocks"),
            "learn-memory": has_many(".blocks.large li", 3),
        },
    ),
    Element(
        19,
        "what a step reused and computed",
        {"compare": a_step_back_says_what_came_from_the_cache},
    ),
    Element(
        20,
        "steps with key points, each with its run",
        {
            "learn-one-token": has(
                ".panel", "One token at a time", "1 guess", "2 see", "3 understand", "4 check"
            ),
            "learn-choosing": has(".shares", "The likeliest tokens", "others"),
            "learn-batching": has(".panel h2", "step 8 of 8"),
            "learn-memory": has_many(".points li", 3),
        },
    ),
    Element(
        21,
        "quick checks",
        {
            "learn-keys-values": has(
                ".lesson", "Which of these are still needed", "leave more numbers in the cache"
            ),
            "learn-with-without": has(".lesson", "Which of the two holds memory"),
            "learn-memory": has(".lesson", "one more token comes"),
            "learn-questions": has(
                ".questions", "Why does speculation need a cache?", "Why continuous batching?"
            ),
        },
    ),
    Element(
        22,
        "memory with and without, as curves with values to read",
        {"compare": the_curves_have_tables},
    ),
    Element(
        23,
        "blocks: of one size, shared, preempted",
        {
            "cache": has(".panel", "blocks of 32 tokens", "shared"),
            "learn-memory": has(".lesson", "preempts", "shared"),
            "timeline": has(".legend", "preempted"),
        },
    ),
    Element(
        24,
        "speculation: drafts, acceptance by position, verifying, speed-up",
        {
            "speculate": has(
                ".view-speculate",
                "k: drafts a round",
                "a: a draft is right",
                "With the share of each position",
            ),
            "learn-numbers": has(
                ".corrections", "0.95 times as fast", "3.77 tokens a round: 3.14×"
            ),
        },
    ),
    Element(
        25,
        "a cache for each request, one pass for all, requests that join and leave",
        {
            "compare-batch": has(".why", "One pass reads the weights once"),
            "learn-batching": has_many(".lanes > div", 24),
            "learn-numbers": has(".corrections", "32 requests from 20 GB", "389 tokens each"),
        },
    ),
    Element(
        26,
        "a playground with sliders; a record to print",
        {
            "plan": has_many(".plan-ask input[type=range]", 4),
            "learn-record": has(".panel", "Print", "All steps are done."),
        },
    ),
    Element(
        27, "both loops as code, the running line lit", {"compare": has_many(".code li.lit", 2)}
    ),
    Element(
        28,
        "what prefill and decode wait for; the shape of the cache; batches",
        {
            "plan": has(".why", "Decode waits for", "Prefill of"),
            "cache": has(".panel", "32 tokens of 32 numbers"),
            "compare-batch": has(".figures", "one by one", "together"),
        },
    ),
    Element(
        29,
        "why a text stopped",
        {
            "generate": has(".ending", "it reached the number of tokens asked for"),
            "learn-challenge": has(".lesson-text", "end token", "stop string"),
        },
    ),
]


@dataclass
class Walk:
    """What a walk through all views found.

    Attributes:
        pictures: that were opened.
        missing: by the number of an element, what was wrong in which picture.
        violations: of accessibility: picture, theme, rule, places.
    """

    pictures: set[str]
    missing: dict[int, list[str]]
    violations: list[tuple[str, str, str, list[Any]]]


@pytest.fixture(scope="module")
def walk(browser: Any, server: Any) -> Iterator[Walk]:
    """Opens each picture once: its elements are looked for, then axe looks at it in both themes."""
    found = Walk(set(), defaultdict(list), [])
    with opened_page(browser, server) as page:
        page.emulate_media(
            reduced_motion="reduce"
        )  # colours that are still changing have no contrast
        for name, address in prepared_pages(page, server.url, list(VIEWS)):
            found.pictures.add(name)
            show(page, address, 1440, "light")
            # Those that only look come before those that change something.
            here = sorted(
                (each for each in ELEMENTS if name in each.checks),
                key=lambda each: (each.checks[name] in DRIVES, each.number),
            )
            for element in here:
                if problem := problem_of(element.checks[name], page):
                    found.missing[element.number].append(f"{name}: {problem}")
            if AXE.exists():
                found.violations += violations_of(page, name, address)
        yield found


def problem_of(check: Check, page: Any) -> str:
    try:
        check(page)
    except (AssertionError, PlaywrightError) as error:
        return str(error) or repr(error)
    return ""


DRIVES = [a_text_appears, a_long_prompt_is_planned]


def violations_of(page: Any, name: str, address: str) -> list[tuple[str, str, str, list[Any]]]:
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found = []
    for theme in THEMES:
        show(page, address, 1440, theme)
        result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found += [
            (name, theme, each["id"], [node["target"] for node in each["nodes"]][:4])
            for each in result["violations"]
            if each["impact"] in ("serious", "critical")
        ]
    return found


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda each: f"{each.number}-{each.name}")
def test_the_element_is_there_and_works(walk: Walk, element: Element) -> None:
    assert set(element.checks) <= walk.pictures
    assert walk.missing[element.number] == []


@pytest.mark.skipif(not AXE.exists(), reason="axe-core comes with make check-page")
def test_no_view_has_a_serious_problem_of_accessibility(walk: Walk) -> None:
    """Each view as it ends, after its runs, in both themes."""
    assert walk.violations == []


def test_the_documents_list_the_elements() -> None:
    rows = re.findall(
        r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE
    )
    listed = [(int(number), name.strip()) for number, name, _ in rows]
    assert listed == [(each.number, each.name) for each in ELEMENTS]
    for (_, _, places), element in zip(rows, ELEMENTS, strict=True):
        views = {picture.split("-")[0] for picture in element.checks}
        assert views <= {view for view in VIEWS if view.title() in places}
