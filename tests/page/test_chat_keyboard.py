"""Chat by keyboard alone, on a wide window and on one of 320 pixels: what has the focus is seen, and is never lost."""

from typing import Any

import pytest

from page.browser import wait_until
from page.conftest import wait_for_all_events
from page.test_chat import LAST, opened_chat, say, set_params, until_whole
from support.step_gate import StepGate

MOST_TABS = 150  # from one end of the page to the other
FOCUSED = """() => {
  const { activeElement: it } = document;
  if (it === document.body) return "";
  return it.getAttribute("aria-label") ?? (it.labels?.[0] ?? it).innerText.trim();
}"""
# Of what has the focus: whether its middle is on the screen with nothing over it, and it is marked.
IS_SEEN = """() => {
  const { activeElement: it } = document;
  const { left, top, width, height } = it.getBoundingClientRect();
  const bottom = Math.min(innerHeight, top + height);
  const under = document.elementFromPoint(left + width / 2, (Math.max(0, top) + bottom) / 2);
  const { outlineStyle, outlineWidth } = getComputedStyle(it);
  return it.contains(under) && outlineStyle !== "none" && parseFloat(outlineWidth) >= 2
    && document.documentElement.scrollWidth <= innerWidth;
}"""


def focused(page: Any) -> str:
    return page.evaluate(FOCUSED)


def tab_to(page: Any, name: str, key: str = "Tab") -> None:
    """Until something of this name has the focus."""
    passed = []
    while focused(page) != name:
        assert len(passed) < MOST_TABS, passed
        page.keyboard.press(key)
        passed.append(focused(page))
    wait_until(page, IS_SEEN)


def press(page: Any, name: str, key: str = "Tab") -> None:
    tab_to(page, name, key)
    page.keyboard.press("Enter")


@pytest.fixture(params=[1440, 320])
def chat(page: Any, request: pytest.FixtureRequest) -> Any:
    page.set_viewport_size({"width": request.param, "height": 640})
    page.emulate_media(reduced_motion="reduce")
    return opened_chat(page)


def test_send_stop_and_answer_again(chat: Any, server: Any) -> None:
    gate = StepGate(server.engine, 4)
    say(chat, "Once upon a time")
    wait_until(chat, f"{LAST}.text !== ''")
    press(chat, "Stop")
    wait_until(chat, f"{LAST}.status === 'stopped'")
    gate.open()
    stopped = chat.evaluate(LAST)
    press(chat, "again", "Shift+Tab")
    wait_until(chat, "id => pellucid.views.chat.branch.value.at(-1).id !== id", stopped["id"])
    answer = until_whole(chat)
    assert answer["text"].startswith(stopped["text"]) and answer["text"] != stopped["text"]


def test_edit_and_go_between_branches(chat: Any) -> None:
    say(chat, "Once upon a time")
    first = until_whole(chat)
    press(chat, "edit", "Shift+Tab")
    wait_until(chat, f"({FOCUSED})() === 'edited message'")
    chat.keyboard.press("Escape")
    wait_until(chat, f"({FOCUSED})() === 'edit'")
    chat.keyboard.press("Enter")
    wait_until(chat, f"({FOCUSED})() === 'edited message'")
    chat.keyboard.press("Control+a")
    chat.keyboard.insert_text("The old miller")
    press(chat, "Send as a new branch")
    wait_until(chat, "pellucid.views.chat.branch.value[0]?.text === 'The old miller'")
    second = until_whole(chat)
    assert focused(chat) == "message"  # where one goes on
    press(chat, "the branch before", "Shift+Tab")
    wait_until(chat, "id => pellucid.views.chat.branch.value.at(-1).id === id", first["id"])
    wait_until(chat, f"({FOCUSED})() === 'the next branch'")  # the only one that there is now
    chat.keyboard.press("Enter")
    wait_until(chat, "id => pellucid.views.chat.branch.value.at(-1).id === id", second["id"])
    wait_until(chat, f"({FOCUSED})() === 'the branch before'")


def test_a_word_opens_its_candidates(chat: Any, server: Any) -> None:
    say(chat, "Once upon a time")
    answer = until_whole(chat)
    wait_for_all_events(chat, server)
    press(chat, "answer; Enter looks into it, word by word", "Shift+Tab")
    text = "document.querySelector('.inside .candidates .chosen .text')?.innerText"
    wait_until(chat, f"text => text.startsWith(({text})?.replaceAll('␣', ' '))", answer["text"])
    first = chat.evaluate("pellucid.selection.pos.value")
    chat.keyboard.press(".")
    wait_until(chat, "pos => pellucid.selection.pos.value === pos", first + 1)
    tab_to(chat, "close")  # the way to what was opened, and back
    chat.keyboard.press("Escape")
    wait_until(chat, "pellucid.views.chat.inside.value.what === 'conversation'")
    chat.locator(".growth li").first.wait_for()


def test_a_conversation_is_deleted(chat: Any) -> None:
    set_params(chat, max_tokens=4, seed=4)
    say(chat, "Once upon a time")
    until_whole(chat)
    press(chat, "export, import, delete", "Shift+Tab")
    press(chat, "delete this one")
    wait_until(chat, f"({FOCUSED})() === 'delete “Once upon a time” for good'")
    chat.keyboard.press("Enter")
    wait_until(chat, "pellucid.views.chat.branch.value.length === 0")
    wait_until(chat, f"({FOCUSED})() === 'New conversation'")
    chat.reload()
    chat.locator("#say").wait_for()
    wait_until(chat, "pellucid.views.chat.isReady.value")
    assert chat.evaluate("pellucid.views.chat.conversations.value.map(({ title }) => title)") == [
        ""
    ]
