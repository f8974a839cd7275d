"""Each of the 29 elements that lessons on inference describe is on the page, and the engine drives it; axe is content.

One walk through all views, as the screenshots take it, answers for all tests of this file. docs/page.md lists the
elements.
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
# The document's table: the name of each element, and the views that it names as its places.
LISTED = {
    int(number): (name, {view for view in VIEWS if view.title() in places})
    for number, name, places in re.findall(
        r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE
    )
}
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
        "tokens passed so far",
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


# Of an element of docs/page.md: in which picture of `prepared_pages` it is seen, and how.
CHECKS: list[tuple[int, str, Check]] = [
    (1, "generate", a_text_appears),
    (2, "learn-one-token", tokens_in_the_cache_climb_by_one),
    (3, "cache", has_many(".table-map, .stepper", 2)),
    (3, "learn-keys-values", has(".lesson-text", "what it is about", "what it has to tell")),
    (4, "compare", has(".why", "costs memory and saves")),
    (5, "plan", shows_facts("a token's keys and values", "longest text alone")),
    (6, "plan", a_long_prompt_is_planned),
    (6, "serve", has(".figures", "first token, p50", "output", "a million tokens")),
    (7, "generate", another_temperature_redraws_the_funnel),
    (
        8,
        "learn-keys-values",
        has(".lesson-text", "It is used wherever", "kv-heads, numbers of a head]"),
    ),
    (8, "learn-questions", has(".panel", "Where is a KV cache used?", "Fun fact.")),
    (9, "learn-challenge", has(".lesson", "before", "after", "times", "Right:")),
    (9, "learn-record", has(".record", "Challenge", " and not ")),
    (10, "generate", a_head_is_looked_at),
    (10, "learn-attention", has(".head-formula", "softmax(q·Kᵀ / √", "query", "weight", "value")),
    (11, "generate", has_many(".candidates tbody tr", 6)),
    (11, "learn-choosing", has_many(".candidates tbody tr", 6)),
    (12, "cache", the_cache_grows_token_by_token),
    (13, "compare", has(".figures", "tokens passed", "operations", "bytes moved")),
    (13, "plan", shows_facts("tokens passed, an answer")),
    (
        13,
        "learn-numbers",
        has(".corrections", "Heads that share keys", "Attention still looks at every pair"),
    ),
    (14, "learn-one-token", tokens_in_the_cache_climb_by_one),
    (15, "serve", has(".view-serve h3", "static", "continuous")),
    (15, "compare-kv_dtype", has(".figures", "bf16", "int8", "int4")),
    (15, "cache", shows_facts("owned", "kept for later", "free")),
    (15, "speculate", has(".why", "tokens are the same")),
    (16, "serve", has_many(".watch li", 3)),
    (16, "learn-questions", has_many(".questions dt", 9)),
    (17, "learn-one-token", has(".steps .about", "20 minutes", "no background needed")),
    (18, "cache", shows_facts("in the cache", "bytes", "blocks")),
    (18, "learn-memory", has_many(".filling li", 3)),
    (19, "compare", a_step_back_says_what_came_from_the_cache),
    (
        20,
        "learn-one-token",
        has(".panel", "One piece at a time", "1 guess", "2 see", "3 understand", "4 check"),
    ),
    (20, "learn-choosing", has(".shares", "The likeliest tokens", "others")),
    (20, "learn-batching", has(".panel h2", "step 8 of 8")),
    (20, "learn-memory", has_many(".points li", 3)),
    (
        21,
        "learn-keys-values",
        has(".lesson", "Which of these are still needed", "leave more numbers in the cache"),
    ),
    (21, "learn-with-without", has(".lesson", "Which of the two holds memory")),
    (21, "learn-memory", has(".lesson", "one more token comes")),
    (
        21,
        "learn-questions",
        has(".questions", "Why does speculation need a cache?", "Why continuous batching?"),
    ),
    (22, "compare", the_curves_have_tables),
    (23, "cache", has(".panel", "blocks of 32 tokens", "shared")),
    (23, "learn-memory", has(".lesson", "preempts", "shared")),
    (23, "timeline", has(".legend", "preempted")),
    (
        24,
        "speculate",
        has(
            ".view-speculate",
            "k: drafts a round",
            "a: a draft is right",
            "With the share of each position",
        ),
    ),
    (24, "learn-numbers", has(".corrections", "0.95 times as fast", "3.77 tokens a round: 3.14×")),
    (25, "compare-batch", has(".why", "One pass reads the weights once")),
    (25, "learn-batching", has_many(".lanes > div", 24)),
    (25, "learn-numbers", has(".corrections", "32 requests from 20 GB", "389 tokens each")),
    (26, "plan", has_many(".plan-ask input[type=range]", 4)),
    (26, "learn-record", has(".panel", "Print", "All steps are done.")),
    (27, "compare", has_many(".code li.lit", 2)),
    (28, "plan", has(".why", "Decode waits for", "Prefill of")),
    (28, "cache", has(".panel", "32 tokens of 32 numbers")),
    (28, "compare-batch", has(".figures", "one by one", "together")),
    (29, "generate", has(".ending", "it reached the number of tokens asked for")),
    (29, "learn-challenge", has(".lesson-text", "end token", "stop string")),
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
                ((number, check) for number, picture, check in CHECKS if picture == name),
                key=lambda each: (each[1] in DRIVES, each[0]),
            )
            for number, check in here:
                if problem := problem_of(check, page):
                    found.missing[number].append(f"{name}: {problem}")
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


@pytest.mark.parametrize("number", LISTED, ids=lambda number: f"{number}-{LISTED[number][0]}")
def test_the_element_is_there_and_works(walk: Walk, number: int) -> None:
    pictures = {picture for of, picture, _ in CHECKS if of == number}
    assert pictures and pictures <= walk.pictures
    assert walk.missing[number] == []
    assert {picture.split("-")[0] for picture in pictures} <= LISTED[number][1]


@pytest.mark.skipif(not AXE.exists(), reason="axe-core comes with make check-page")
def test_no_view_has_a_serious_problem_of_accessibility(walk: Walk) -> None:
    """Each view as it ends, after its runs, in both themes."""
    assert walk.violations == []
