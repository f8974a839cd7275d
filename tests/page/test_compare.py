"""Compare in Chromium: comparisons that really run, driven by keys, shown as pictures and as tables."""

from typing import Any

import pytest

from page.browser import wait_until


def run_it(page: Any, tokens: int = 12) -> None:
    page.keyboard.press("5")
    page.locator("main.view-compare h2").first.wait_for()
    page.evaluate("n => { pellucid.views.compare.tokens.value = n; }", tokens)
    page.keyboard.press("r")
    wait_until(page, "Boolean(pellucid.views.compare.latest?.end)")
    wait_until(page, "pellucid.views.compare.stop.value === null")


def test_with_and_without_the_cache(page: Any) -> None:
    run_it(page)
    arms = page.evaluate("pellucid.views.compare.latest.end.arms")
    prompt = page.evaluate("pellucid.views.compare.latest.promptTok")
    assert arms["cached"]["pass_tok"] == prompt + 12 - 1
    assert arms["naive"]["pass_tok"] == prompt * 12 + 12 * 11 // 2
    row = page.locator(".figures tr", has_text="tokens passed")
    assert row.locator("td").nth(0).inner_text().startswith(str(arms["cached"]["pass_tok"]))
    assert row.locator("td").nth(1).inner_text().startswith(str(arms["naive"]["pass_tok"]))
    page.locator(".chip", has_text="the same text").wait_for()
    page.locator(".why", has_text="A cache costs memory and saves compute.").wait_for()
    # Both loops have ended; at the second token the model line of each is lit.
    assert page.locator(".code .lit").all_inner_texts() == [
        "return tokens",
        "        return tokens",
    ]
    for _ in range(10):
        page.keyboard.press(",")
    page.locator("output", has_text="token 2 of 12").wait_for()
    labels = [f"Of {prompt + 2} tokens, 1 passed", f"Of {prompt + 2} tokens, {prompt + 1} passed"]
    for label in labels:  # as cells: the newest alone, or all
        page.locator(f".written [aria-label^='{label}']").wait_for()
    lit = page.locator(".code .lit").all_inner_texts()
    assert [text.split("#")[0].strip() for text in lit] == [
        "logits = model(last, cache)",
        "logits = model(tokens)",
    ]


def test_each_way_shows_its_text_what_the_newest_token_read_and_the_blocks(page: Any) -> None:
    run_it(page)
    prompt = page.evaluate("pellucid.views.compare.latest.promptTok")
    for way in page.locator(".written").all():
        way.locator(".arcs path").first.wait_for()
        assert way.locator(".t").count() == prompt + 12
        assert way.locator(".t.prompt").count() == prompt
    page.keyboard.press(",")
    page.locator("output", has_text="token 11 of 12").wait_for()
    path = (
        f"/0/{prompt + 11 - 2}"  # the position whose query chose the token that is the newest now
    )
    with page.expect_response(lambda reply: "/v1/attn/" in reply.url and path in reply.url) as kept:
        page.keyboard.press(",")
        page.keyboard.press(".")
    reads = {pos: weight for pos, _, _, weight in kept.value.json()["top"]}
    most = max(reads, key=reads.get)
    for way in page.locator(".written").all():
        way.locator(f".t.read[data-pos='{most}']").wait_for()
        way.locator(f".t.chosen[data-pos='{prompt + 10}']").wait_for()
        assert way.locator(".t").count() == prompt + 11
        way.locator("p", has_text="it read").wait_for()
    page.locator(f".written .t[data-pos='{prompt + 3}']").first.click()
    page.locator("output", has_text="token 4 of 12").wait_for()


def test_the_table_has_what_the_curves_show(page: Any) -> None:
    run_it(page)
    page.keyboard.press("t")
    table = page.locator(".curves .twin").nth(1)  # tokens passed
    table.locator("tbody tr").last.wait_for()
    cells = table.locator("tbody tr").last.locator("td").all_inner_texts()
    arms = page.evaluate("pellucid.views.compare.latest.end.arms")
    assert cells == ["12", str(arms["cached"]["pass_tok"]), str(arms["naive"]["pass_tok"])]


@pytest.mark.parametrize(
    ("kind", "names"), [("kv_dtype", ["bf16", "int8", "int4"]), ("batch", None)]
)
def test_other_comparisons(page: Any, kind: str, names: list[str] | None) -> None:
    page.keyboard.press("5")
    page.locator("main.view-compare h2").first.wait_for()
    for _ in range(1 if kind == "kv_dtype" else 2):
        page.keyboard.press("k")
    wait_until(page, "kind => pellucid.views.compare.kind.value === kind", kind)
    run_it(page, 8)
    assert page.evaluate("pellucid.views.compare.latest.kind") == kind
    heads = [text.strip() for text in page.locator(".figures thead th.number").all_inner_texts()]
    assert heads == (names or ["one by one", "together"])
    page.locator(".why").first.wait_for()
