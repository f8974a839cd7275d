"""The page's Cache view: its table is the engine's pool at any moment, a block's numbers, where two prompts part."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from page.browser import wait_until

PROMPT = (
    "Once upon a time there was a small dog who lived near the sea. Every morning the dog ran along "
    "the beach and looked for shells. One day"
)
SNAPSHOTS = 50


def complete(server: Any, prompt: str, max_tokens: int, seed: int = 1) -> None:
    body = {"model": "tested", "prompt": prompt, "max_tokens": max_tokens, "seed": seed}
    assert server.post("/v1/completions", {**body, "ignore_eos": True}).status == 200


def table_of_blocks(page: Any) -> list[list[str]]:
    return page.evaluate(
        "[...document.querySelectorAll('.twin tbody')[0].rows].map(row => [...row.cells].map(cell => cell.textContent))"
    )


def test_the_table_is_the_engines_pool_at_every_moment(page: Any, server: Any) -> None:
    page.keyboard.press("4")
    wait_until(page, "pellucid.store.hello !== null")
    snapshots = []
    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(complete, server, PROMPT[: 40 * n], 48, n) for n in (1, 2, 3, 3)]
        while len(snapshots) < SNAPSHOTS:
            snapshots.append(server.get("/v1/snapshot").json)
        for each in running:
            each.result()
    size = page.evaluate("pellucid.store.hello.kv.block_tok")
    newest = max(each["as_of_seq"] for each in snapshots)
    wait_until(page, f"pellucid.store.head.seq >= {newest}")
    page.locator("canvas[role=application]").first.wait_for()
    page.keyboard.press("t")
    page.locator(".twin tbody").first.wait_for()
    for snapshot in snapshots:
        page.evaluate(f"pellucid.cursor.seek({snapshot['as_of_seq']})")
        wait_until(page, f"pellucid.cursor.seq.value === {snapshot['as_of_seq']}")
        page.evaluate(
            "new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
        )
        shown = table_of_blocks(page)
        owners = dict.fromkeys(range(len(shown)), 0)
        sealed = dict.fromkeys(range(len(shown)), "no")
        for block, count, digest in snapshot["blocks"]:
            if block < len(shown):
                owners[block] = count
                sealed[block] = "no" if digest is None else "yes"
        assert [int(row[2]) for row in shown] == list(owners.values())
        assert [row[4] for row in shown] == list(sealed.values())
        for request in snapshot["requests"]:
            filled = request["computed_tok"]
            for index, block in enumerate(request["blocks"]):
                if block < len(shown):
                    assert int(shown[block][3]) == max(0, min(size, filled - index * size))


def test_a_blocks_numbers_appear_when_it_is_chosen(page: Any, server: Any) -> None:
    complete(server, PROMPT, 24)
    page.keyboard.press("4")
    page.locator(".prefix-tree button").first.click()
    page.locator("p.why", has_text="8 bits change these keys").wait_for()
    block = page.evaluate("pellucid.selection.block.value")
    reply = server.get(f"/v1/kv/blocks/{block}").json
    share = reply["int8"]["k"]["rms_error_frac"] * 100
    text = page.locator("p.why", has_text="8 bits change these keys").text_content()
    assert f"{share:.2f} %" in text or f"{share:.1f} %" in text


def test_a_slow_reply_is_shown_though_the_pool_has_changed_meanwhile(
    page: Any, server: Any
) -> None:
    complete(server, PROMPT, 4)
    asked: list[Any] = []
    page.route("**/v1/kv/tree", lambda route: asked.append(route))
    page.keyboard.press("4")
    while not asked:
        page.wait_for_timeout(20)
    known = page.evaluate("pellucid.store.requests.size")
    complete(server, f"{PROMPT} it found one. {PROMPT}", 4)
    wait_until(page, "known => pellucid.store.requests.size > known", known)
    asked[0].continue_()
    page.locator(".prefix-tree button").first.wait_for()


def test_where_two_prompts_part_is_marked_in_both(page: Any, server: Any) -> None:
    wait_until(page, "pellucid.store.hello !== null")
    first = f"The dog found a red stone under an old boat. {PROMPT} {PROMPT}"
    complete(server, first, 4)
    page.keyboard.press("4")
    complete(server, first.replace("stone", "fish"), 4)
    marks = page.locator(".parting mark")
    marks.first.wait_for()
    wait_until(
        page,
        """() => {
          const texts = [...document.querySelectorAll('.parting mark')].map((mark) => mark.textContent);
          return texts.length === 2 && texts.every((text) => !text.includes('·'));
        }""",
    )
    assert marks.nth(0).text_content() != marks.nth(1).text_content()
