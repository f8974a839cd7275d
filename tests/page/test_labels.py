"""No label of a picture is cut or small, at any width."""

from typing import Any

import pytest

from page.browser import wait_until
from page.conftest import wait_for_all_events

# Texts that reach beyond the left or right edge of their canvas, and those of less than 14 pixels. A text that would be
# drawn outside on purpose is none.
KEEP_CUT_LABELS = """() => {
  window.cut = {};
  window.small = {};
  const { fillText } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, most) {
    const { a: scale, e: shift } = this.getTransform();
    const width = Math.min(this.measureText(text).width, most ?? Infinity);
    if (Number(this.font.match(/([\\d.]+)px/)[1]) < 14) window.small[text] = this.font;
    const before = { center: width / 2, right: width }[this.textAlign] ?? 0;
    const left = shift / scale + x - before;
    const across = this.canvas.width / scale;
    if (left < -0.5 || left + width > across + 0.5) window.cut[text] = [left, left + width, across];
    fillText.call(this, text, x, y, ...(most === undefined ? [] : [most]));
  };
}"""


@pytest.mark.parametrize("width", [1440, 900, 320])
def test_no_label_is_cut(page: Any, server: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate(KEEP_CUT_LABELS)
    body = {"model": "tested", "prompt": "Once", "max_tokens": 8, "ignore_eos": True}
    server.post("/v1/completions", body)
    wait_for_all_events(page, server)
    go(page, "timeline")
    page.locator(".view-timeline canvas").first.wait_for()
    go(page, "compare")
    for kind in ("cache", "batch"):
        page.evaluate(
            "kind => { const state = pellucid.views.compare; state.kind.value = kind;"
            " state.tokens.value = 16; state.start(); }",
            kind,
        )
        wait_until(page, "Boolean(pellucid.views.compare.latest?.end)")
    go(page, "serve")
    for rate in (60, 2.5):
        page.evaluate(
            "rate => { const serve = pellucid.views.serve; serve.requests.value = 4; serve.rate.value = rate;"
            " serve.outputTok.value = 8; serve.promptTok.value = 8; serve.seats.value = 2; serve.start(); }",
            rate,
        )
        wait_until(page, "Boolean(pellucid.views.serve.loads.continuous?.end)")
        wait_until(page, "pellucid.views.serve.stop.value === null")
    go(page, "plan")
    page.locator(".view-plan canvas").first.wait_for()
    for shape in ("", "llama-3.1-8b"):
        page.evaluate("shape => { pellucid.views.plan.shape.value = shape; }", shape)
        page.wait_for_timeout(600)
    assert page.evaluate("[window.cut, window.small]") == [{}, {}]


def go(page: Any, view: str) -> None:
    page.evaluate("view => pellucid.route.go(view)", view)
    page.locator(f"main.view-{view} h2").first.wait_for()
