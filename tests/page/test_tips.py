"""One layer says what is under the pointer or the keyboard's focus: tokens, blocks, lanes, points."""

from typing import Any

from page.browser import wait_until
from page.test_generate import generate

TIP = "document.querySelector('.tip')?.textContent"


def hover_canvas(page: Any, view: str, right: float, down: float) -> str:
    """Points into the first picture of a view, at shares of its width and height; what the sheet says."""
    canvas = page.locator(f"main.view-{view} .picture canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] * right, box["y"] + box["height"] * down)
    wait_until(page, f"{TIP} !== undefined")
    return page.evaluate(TIP)


def test_what_a_token_a_block_a_lane_and_a_step_are(page: Any) -> None:
    generate(page, "Once upon a time there")
    token = page.locator(".t:not(.prompt)").first
    token.hover()
    said = token.get_attribute("data-tip")
    assert said.startswith(
        f"{token.get_attribute('aria-label').split(',')[0].replace(' ', '␣')} · "
    )
    wait_until(page, f"said => {TIP} === said", said)
    page.keyboard.press("Escape")
    wait_until(page, f"{TIP} === undefined")
    # The keyboard says the same of the token that it goes to.
    page.locator(".tokens").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    wait_until(page, f"{TIP}?.endsWith('position 1 · of the prompt')")
    page.locator(".blocks li").first.hover()
    wait_until(page, f"{TIP}?.startsWith('block ')")
    page.keyboard.press("3")
    wait_until(page, f"{TIP} === undefined")
    assert hover_canvas(page, "timeline", 0.5, 0.1).startswith("r1")
    assert page.locator(".picture .mark").count() == 1
    page.keyboard.press("4")
    assert hover_canvas(page, "cache", 0.01, 0.02).startswith("Block 0")
    page.locator("main.view-cache .picture canvas").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    wait_until(page, f"{TIP}?.startsWith('Block 1')")


def test_the_sheet_stays_in_the_window_and_lets_the_pointer_through(page: Any) -> None:
    page.set_viewport_size({"width": 320, "height": 700})
    page.locator("button[aria-label='keys']").hover()
    wait_until(page, f"{TIP} === 'keys (?)'")
    box = page.locator(".tip").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 320
    page.locator("button[aria-label='keys']").click()
    page.locator("dialog, [popover]").first.wait_for()
