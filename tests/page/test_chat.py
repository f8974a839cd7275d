"""Chat: conversations that survive, answers that go on, words that open, Markdown in which nothing runs."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from page.browser import wait_until
from page.conftest import opened_page, wait_for_all_events
from page.test_elements import AXE
from support.bundled import bundled_engine
from support.http_server import running_server
from support.step_gate import StepGate

LAST = "pellucid.views.chat.branch.value.at(-1)"
SELECTED = """() => {
  const request = pellucid.store.requests.get(pellucid.selection.req.value);
  const tokens = request?.tokens.map((row) => pellucid.store.token(row));
  return tokens?.find(({ pos }) => pos === pellucid.selection.pos.value);
}"""
HOSTILE = """<script>window.ran = 1</script>

<img src=x onerror='window.ran = 2'>

[a](javascript:window.ran=3) ![b](https://elsewhere.example/x.png)

```html
<script>window.ran = 4</script>
```

| a | <b onclick='window.ran = 5'>b</b> |
|---|---|
| `<i>` | <svg onload=window.ran=6> |

<iframe srcdoc='<script>parent.ran = 7</script>'></iframe> [c](data:text/html,<script>1</script>) <https://example.com>

"""
HOSTILE_FORMULA = """
$\\href{javascript:window.ran=8}{x} \\htmlStyle{color:red}{y} \\includegraphics{https://elsewhere.example/y.png}$
"""
# From here on a page's databases answer only when `answerReads` is called.
HOLD_READS = """() => {
  const gate = new Promise((open) => (window.answerReads = open));
  const { get, set } = Object.getOwnPropertyDescriptor(IDBRequest.prototype, "onsuccess");
  window.heldReads = 0;
  Object.defineProperty(IDBRequest.prototype, "onsuccess", {
    get,
    set(done) {
      if (!(this.source instanceof IDBObjectStore || this.source instanceof IDBIndex)) return set.call(this, done);
      if (this.transaction.mode !== "readonly") return set.call(this, done);
      window.heldReads += 1;
      set.call(this, (event) => gate.then(() => done.call(this, event)));
    },
  });
}"""
OF_ANSWERS = {
    "A",
    "BLOCKQUOTE",
    "BR",
    "BUTTON",
    "CODE",
    "DIV",
    "EM",
    "FIGCAPTION",
    "FIGURE",
    "H3",
    "H4",
    "H5",
    "H6",
    "HR",
    "I",
    "LI",
    "OL",
    "P",
}
OF_ANSWERS |= {"math", "mi", "mn", "mo", "mrow", "mstyle", "mtext", "semantics"}
OF_ANSWERS |= {"PRE", "S", "SPAN", "STRONG", "TABLE", "TBODY", "TD", "TH", "THEAD", "TR", "UL"}


@pytest.fixture
def chat(page: Any) -> Any:
    return opened_chat(page)


def opened_chat(page: Any) -> Any:
    page.keyboard.press("9")
    page.locator("#say").wait_for()
    wait_until(page, "pellucid.views.chat.isReady.value")
    set_params(page, max_tokens=24, seed=4)
    return page


def set_params(page: Any, **params: int) -> None:
    page.evaluate("params => pellucid.views.chat.set({ params })", params)


def say(page: Any, text: str) -> None:
    """By keyboard alone; until the answer to it is there, if empty."""
    before = page.evaluate("pellucid.views.chat.branch.value.length")
    page.keyboard.press("/")
    page.keyboard.insert_text(text)
    page.keyboard.press("Enter")
    wait_until(page, "messages => pellucid.views.chat.branch.value.length === messages", before + 2)
    page.keyboard.press("Escape")


def until_whole(page: Any) -> dict[str, Any]:
    wait_until(page, f"{LAST}.status === 'whole'")
    return page.evaluate(LAST)


def test_a_conversation_stays_and_is_the_one_that_other_clients_have(
    chat: Any, server: Any
) -> None:
    question = "Once upon a time there was a small dog who lived near the sea. " * 3
    say(chat, question)
    first = until_whole(chat)
    say(chat, "And then?")
    second = until_whole(chat)
    assert second["usage"]["cached"] > 0
    chat.reload()
    chat.locator("#say").wait_for()
    wait_until(chat, f"{LAST}?.text === {json.dumps(second['text'])}")
    chat.keyboard.press(".")  # its events are still there
    chat.locator(".inside .candidates .chosen").wait_for()
    messages = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": "And then?"},
    ]
    body = {"model": "tested", "messages": messages, "max_tokens": 24, "seed": 4}
    reply = server.post("/v1/chat/completions", body).json
    assert reply["choices"][0]["message"]["content"] == second["text"]


def test_an_answer_goes_on_after_a_reload_as_if_nothing_had_happened(
    chat: Any, server: Any
) -> None:
    set_params(chat, max_tokens=200, seed=4)
    say(chat, "Tell me a long story of the sea.")
    whole = until_whole(chat)
    gate = StepGate(server.engine, 60)
    chat.keyboard.press("a")  # the same again, and a reload in its middle
    wait_until(chat, f"{LAST}.status === 'writing' && {LAST}.text.length > 40")
    chat.reload()
    gate.open()
    chat.locator("#say").wait_for()
    wait_until(chat, f"{LAST}?.role === 'assistant'")
    again = until_whole(chat)
    assert again["id"] != whole["id"]
    assert again["text"] == whole["text"]


def test_an_answer_goes_on_when_a_restarted_server_is_back(browser: Any) -> None:
    question = "Tell me a long story of the sea."
    with ThreadPoolExecutor(1) as thread:
        running = running_server(bundled_engine())
        server = thread.submit(running.__enter__).result()
        with opened_page(browser, server, may_fail="Failed to load resource") as page:
            gate = StepGate(server.engine, 40)
            set_params(opened_chat(page), max_tokens=120, seed=4)
            say(page, question)
            wait_until(page, f"{LAST}.text.length > 40")
            thread.submit(running.__exit__, None, None, None).result()
            gate.open()
            page.get_by_text("The answer goes on when it is back.").wait_for()
            running = running_server(bundled_engine(), port=server.port)
            server = thread.submit(running.__enter__).result()
            answer = until_whole(page)
            body = {"model": "tested", "messages": [{"role": "user", "content": question}]}
            reply = server.post("/v1/chat/completions", {**body, "max_tokens": 120, "seed": 4}).json
            assert answer["text"] == reply["choices"][0]["message"]["content"]
            assert len({part["boot"] for part in answer["parts"]}) == 2
        thread.submit(running.__exit__, None, None, None).result()


LONG_CHAT = """turns => {
  const messages = Array.from({ length: 2 * turns }, (_, at) => ({
    id: `m${at}`, parent: at ? `m${at - 1}` : "", role: at % 2 ? "assistant" : "user",
    text: `**words** of ${at}`, status: "whole", at,
  }));
  const conversation = { title: "long", leaf: `m${2 * turns - 1}`, messages };
  return pellucid.views.chat.imported(JSON.stringify({ pellucid_chats: 1, conversations: [conversation] }));
}"""
KEEP_CHANGED_TURNS = """() => {
  window.changed = new Set();
  const turnOf = (node) => (node.closest ? node : node.parentElement)?.closest(".turn");
  const all = { childList: true, subtree: true, characterData: true, attributes: true };
  new MutationObserver((seen) => seen.forEach(({ target }) => window.changed.add(turnOf(target))))
    .observe(document.querySelector(".thread"), all);
}"""


def test_an_answer_after_500_turns_changes_its_own_turn_alone(chat: Any) -> None:
    # More turns than this model reads: the answer is not its own.
    words = [{"choices": [{"delta": {"content": f"word {n}\n\n"}}]} for n in range(40)]
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in (*words, end))
    chat.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))
    chat.evaluate(LONG_CHAT, 500)
    wait_until(chat, "document.querySelectorAll('.turn').length === 1000")
    chat.evaluate(KEEP_CHANGED_TURNS)
    say(chat, "And then?")
    until_whole(chat)
    wait_until(chat, "document.querySelectorAll('.turn').length === 1002")
    wait_until(chat, "document.querySelector('.turn:last-child').innerText.includes('word 39')")
    before = "[...document.querySelectorAll('.turn')].slice(0, 1000)"
    assert chat.evaluate(f"{before}.filter((each) => window.changed.has(each)).length") == 0
    wait_until(chat, "innerHeight + scrollY >= document.documentElement.scrollHeight - 1")


def test_edits_and_new_answers_are_branches(chat: Any) -> None:
    say(chat, "Once upon a time")
    first = until_whole(chat)
    set_params(chat, max_tokens=24, seed=5)
    chat.keyboard.press("a")
    wait_until(chat, f"{LAST}.id !== {json.dumps(first['id'])}")
    second = until_whole(chat)
    assert second["text"] != first["text"]
    chat.get_by_role("button", name="the branch before").click()
    wait_until(chat, f"{LAST}.id === {json.dumps(first['id'])}")
    chat.get_by_role("button", name="edit").click()
    chat.get_by_label("edited message").fill("The old miller")
    chat.get_by_role("button", name="Send as a new branch").click()
    wait_until(chat, "pellucid.views.chat.branch.value[0]?.text === 'The old miller'")
    until_whole(chat)
    assert chat.evaluate("pellucid.views.chat.messages.value.size") == 5
    chat.get_by_role("button", name="the branch before").click()
    wait_until(chat, f"{LAST}.id === {json.dumps(second['id'])}")


def test_a_word_opens_the_token_that_wrote_it(chat: Any, server: Any) -> None:
    say(chat, "Once upon a time")
    answer = until_whole(chat)
    wait_for_all_events(chat, server)
    chat.keyboard.press(".")
    for _ in range(4):
        chat.keyboard.press(".")
    # The page selects the token when it has drawn the answer again, some time after the key.
    at = chat.evaluate("pellucid.views.chat.inside.value.at")
    wait_until(
        chat,
        f"([text, at]) => ({SELECTED})()?.text && text.startsWith(({SELECTED})().text, at)",
        [answer["text"], at],
    )
    token = chat.evaluate(SELECTED)
    chat.locator(".inside .candidates .chosen", has_text=token["text"].strip()).wait_for()
    chat.locator(".inside .read-list").wait_for()
    box = chat.locator(".answer-text [data-at]").first.bounding_box()
    chat.mouse.click(box["x"] + 3, box["y"] + 8)  # the first word
    wait_until(chat, "pellucid.views.chat.inside.value.at === 0")
    chat.keyboard.press("w")
    chat.locator(".inside .ledger-sum").wait_for()
    chat.keyboard.press("Escape")
    chat.locator(".growth li").first.wait_for()


def begin(page: Any, text: str) -> dict[str, Any]:
    """A new conversation with a message and its whole answer."""
    page.evaluate("pellucid.views.chat.begin()")
    set_params(page, max_tokens=8, seed=4)
    say(page, text)
    until_whole(page)
    return page.evaluate("pellucid.views.chat.open.value")


def choose(page: Any, conversation: str) -> None:
    page.evaluate("id => void pellucid.views.chat.choose(id)", conversation)


def test_a_slow_database_loses_nothing_that_was_said_meanwhile(chat: Any) -> None:
    first = begin(chat, "Once upon a time")
    chat.evaluate(HOLD_READS)
    # Another tab has changed something: all is read again.
    chat.evaluate(
        "conversation => new BroadcastChannel('pellucid.chat').postMessage({ conversation })",
        first["id"],
    )
    wait_until(chat, "window.heldReads === 1")
    chat.evaluate("pellucid.views.chat.send('And then?', [])")
    until_whole(chat)
    chat.evaluate("pellucid.views.chat.begin()")
    chat.evaluate("pellucid.views.chat.send('The old miller', [])")
    second = chat.evaluate("pellucid.views.chat.open.value.id")
    until_whole(chat)
    choose(chat, first["id"])
    chat.evaluate("window.answerReads()")
    wait_until(chat, "id => pellucid.views.chat.open.value.id === id", first["id"])
    assert (
        chat.evaluate("pellucid.views.chat.branch.value.map(({ role }) => role)")
        == ["user", "assistant"] * 2
    )
    assert chat.evaluate(f"{LAST}.id === pellucid.views.chat.open.value.leaf")
    choose(chat, second)
    wait_until(chat, "id => pellucid.views.chat.open.value.id === id", second)
    assert chat.evaluate("pellucid.views.chat.branch.value.length") == 2


def test_an_answer_that_ends_while_its_conversation_is_read_is_whole(
    chat: Any, server: Any
) -> None:
    other = begin(chat, "Once upon a time")
    chat.evaluate("pellucid.views.chat.begin()")
    gate = StepGate(server.engine, 2)
    chat.evaluate("pellucid.views.chat.send('The old miller', [])")
    asked = chat.evaluate("pellucid.views.chat.open.value.id")
    wait_until(chat, f"{LAST}?.parts?.length === 1")
    choose(chat, other["id"])
    wait_until(chat, "id => pellucid.views.chat.open.value.id === id", other["id"])
    chat.evaluate(HOLD_READS)
    choose(chat, asked)
    wait_until(chat, "window.heldReads === 1")
    gate.open()
    wait_until(chat, "Object.keys(pellucid.views.chat.answers.progress.value).length === 0")
    chat.evaluate("window.answerReads()")
    wait_until(chat, "id => pellucid.views.chat.open.value.id === id", asked)
    assert chat.evaluate(f"{LAST}.status") == "whole"
    assert chat.evaluate("pellucid.views.chat.branch.value.length") == 2


def test_a_draft_stays_with_its_conversation(chat: Any) -> None:
    first = begin(chat, "Once upon a time")
    second = begin(chat, "The old miller")
    chat.keyboard.press("/")
    chat.keyboard.insert_text("half a")
    choose(chat, first["id"])  # while the field still has the focus
    wait_until(chat, "document.getElementById('say').value === ''")
    choose(chat, second["id"])
    wait_until(chat, "document.getElementById('say').value === 'half a'")


def answer_with(chat: Any, text: str) -> None:
    """A turn whose answer is replaced by a text."""
    say(chat, "Once")
    until_whole(chat)
    chat.evaluate(
        "text => { const chat = pellucid.views.chat; const last = chat.branch.value.at(-1);"
        " chat.messages.value = new Map(chat.messages.value).set(last.id, {...last, text}); }",
        text,
    )


def test_formulas_are_drawn_and_what_is_none_stays_as_it_was_written(chat: Any) -> None:
    answer_with(chat, "It is $\\frac{a}{b}$, not $\\frac{a$, and\n\n$$\n\\sum_{i=1}^n x_i\n$$\n")
    chat.locator(".answer-text p math mfrac").wait_for()
    chat.locator(".answer-text .wide-table math[display=block] munderover").wait_for()
    assert chat.locator(".answer-text math").count() == 2
    assert "$\\frac{a$" in chat.evaluate("document.querySelector('.answer-text').innerText")
    sizes = chat.evaluate(
        "[...document.querySelectorAll('.answer-text mfrac > *')]"
        ".map((each) => [each.getBoundingClientRect().top, each.namespaceURI])"
    )
    assert sizes[0][0] < sizes[1][0]  # one above the other: the browser knows what it is
    assert {each[1] for each in sizes} == {"http://www.w3.org/1998/Math/MathML"}


def test_nothing_of_hostile_markdown_runs(chat: Any) -> None:
    text = HOSTILE * (200_000 // len(HOSTILE) + 1)
    answer_with(chat, text + HOSTILE_FORMULA)
    wait_until(chat, "document.querySelectorAll('.answer-text .code-block').length > 300")
    chat.locator(".answer-text .hl-tag, .answer-text .hl-name").first.wait_for()
    chat.locator(".answer-text math").wait_for()
    names = chat.evaluate(
        "[...new Set([...document.querySelectorAll('.answer-text *')].map((each) => each.tagName))]"
    )
    assert set(names) <= OF_ANSWERS
    links = chat.evaluate(
        "[...new Set([...document.querySelectorAll('.answer-text a')].map((each) => each.href))]"
    )
    assert set(links) == {"https://elsewhere.example/x.png", "https://example.com/"}
    assert chat.evaluate("window.ran") is None
    shown = chat.evaluate("document.querySelector('.answer-text').innerText")
    assert "<script>window.ran = 1</script>" in shown and "<img src=x" in shown


def test_conversations_are_exported_imported_and_deleted(chat: Any, tmp_path: Path) -> None:
    say(chat, "Once upon a time")
    answer = until_whole(chat)
    chat.get_by_text("export, import, delete").click()
    with chat.expect_download() as saved:
        chat.get_by_role("button", name="export this one").click()
    path = tmp_path / "chat.json"
    saved.value.save_as(path)
    chat.get_by_role("button", name="delete this one").click()
    chat.get_by_role("button", name="for good").click()
    wait_until(chat, "pellucid.views.chat.branch.value.length === 0")
    chat.set_input_files(".keep input[type=file]", path)
    wait_until(chat, f"{LAST}?.text === {json.dumps(answer['text'])}")
    path.write_text('{"pellucid_chats": 2}')
    chat.set_input_files(".keep input[type=file]", path)
    chat.locator(".why.trouble", has_text="pellucid_chats: 2; must be 1").wait_for()


def test_another_tab_sees_an_answer_as_it_is_written(chat: Any, server: Any) -> None:
    say(chat, "Once upon a time")
    until_whole(chat)
    other = chat.context.new_page()
    other.goto(f"{server.url}/#chat")
    other.locator(".answer-text").wait_for()
    say(chat, "And then?")
    answer = until_whole(chat)
    wait_until(other, f"{LAST}?.text === {json.dumps(answer['text'])} && {LAST}.status === 'whole'")


def test_text_files_are_sent_and_others_are_refused(chat: Any, server: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("The dog is called Rex.\n")
    (tmp_path / "picture.bin").write_bytes(b"\x00\xff\x00")
    chat.set_input_files(
        ".composer input[type=file]", [tmp_path / "notes.txt", tmp_path / "picture.bin"]
    )
    chat.locator(".composer .why", has_text="picture.bin: is not text in UTF-8").wait_for()
    say(chat, "What is it called?")
    until_whole(chat)
    wait_for_all_events(chat, server)
    ids = chat.evaluate(f"pellucid.store.requests.get({LAST}.parts[0].req).added.prompt_ids")
    assert "notes.txt:\n```\nThe dog is called Rex.\n```" in server.engine.tokenizer.decode(ids)


def test_what_the_server_refuses_is_said(browser: Any, server: Any) -> None:
    with opened_page(browser, server, may_fail="400 (Bad Request)") as page:
        set_params(opened_chat(page), max_tokens=24, top_k=-7)
        say(page, "Once")
        page.locator(".turn .why.trouble", has_text="top_k").wait_for()


@pytest.mark.skipif(not AXE.exists(), reason="axe-core comes with make check-page")
def test_axe_finds_nothing_and_nothing_is_wider_than_a_phone(chat: Any) -> None:
    say(chat, "Once upon a time")
    until_whole(chat)
    chat.evaluate(AXE.read_text(encoding="utf-8"))
    for theme in ("light", "dark"):
        chat.emulate_media(color_scheme=theme)
        for width in (1440, 320):
            chat.set_viewport_size({"width": width, "height": 800})
            for key in ("Escape", ".", "w"):
                chat.keyboard.press(key)
                chat.wait_for_timeout(300)  # pictures take their width in a later frame
                wait_until(chat, "width => document.documentElement.scrollWidth <= width", width)
                found = chat.evaluate("axe.run(document, {resultTypes: ['violations']})")[
                    "violations"
                ]
                assert [
                    (theme, width, key, each["id"], [node["target"] for node in each["nodes"]][:3])
                    for each in found
                ] == []
