"""The live page's speed in a browser: its first paint, and its frames beside 10,000 blocks and 32 requests.

    python benchmarks/page_speed.py [--seconds 60] [--view generate --view cache ...] [--requests 32]
    python benchmarks/page_speed.py --export      the page as one file: first paint, and when it plays

A server of this script sends the page's own files and a stream of synthetic events, as many as a busy engine sends:
requests decode at 25 steps a second, each token with ten candidates and its sampling stages, each step with its
times and blocks. What a frame takes is processor time of the page's main thread, from Chromium's own trace: scripts,
style, layout and paint, whatever else the machine does. "scroll" is Timeline with 10,000 requests that have ended,
under a wheel that turns in each frame. Needs Chromium and playwright (`make test-page` installs it).
"""

import argparse
import json
import random
import shutil
import statistics
import tempfile
import threading
import time
from bisect import bisect
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from pellucid.observing.page_bundle import export_file
from pellucid.observing.page_files import page_files, security_policy

NUM_BLOCKS, BLOCK_TOKENS = 10_000, 16
STEPS_PER_SECOND = 25
PROMPT_TOKENS, OUTPUT_TOKENS = 400, 300
VOCABULARY = 32_000
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--enable-precise-memory-info",
    "--js-flags=--expose-gc",
)
# empty: a page without anything, the machine's floor; scroll: Timeline with ENDED requests
VIEWS = (
    *("empty", "generate", "timeline", "cache", "compare", "speculate", "serve", "plan", "learn"),
    *("chat", "scroll"),
)
ENDED = 10_000

# Frames come as fast as the page can make them; tasks of more than 50 ms are noted.
WATCH = """() => {
  const seen = (window.seen = {gaps: [], tasks: [], last: performance.now()});
  const note = (list) => seen.tasks.push(...list.getEntries().map((each) => each.duration));
  new PerformanceObserver(note).observe({type: "longtask"});
  const frame = () => {
    const begun = performance.now();
    seen.gaps.push(begun - seen.last);
    seen.last = begun;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}"""
TRACED = ["toplevel", "devtools.timeline"]
TASK = "ThreadControllerImpl::RunTask"
FRAME = "FireAnimationFrame"
# When the shown view is there and can be used.
INTERACTIVE = """
  const look = () => {
    if (document.querySelector("main h2") && document.querySelector("nav a.on")) window.interactive = performance.now();
    else requestAnimationFrame(look);
  };
  addEventListener("DOMContentLoaded", look);
"""
# When a recording plays.
PLAYS = """
  const look = () => {
    if (globalThis.pellucid?.cursor.isPlaying.value) window.plays = performance.now();
    else requestAnimationFrame(look);
  };
  addEventListener("DOMContentLoaded", look);
"""
HEAP = "() => { gc(); return performance.memory.usedJSHeapSize; }"


class Events:
    """The events of an engine that is busy from the first second on.

    Args:
        requests: that decode at a time.
        ended: requests that have ended before.
    """

    def __init__(self, requests: int, ended: int) -> None:
        self._requests, self._ended = requests, ended
        self._random = random.Random(1)
        self._seq = -1
        self._free = list(range(NUM_BLOCKS - 1, -1, -1))
        self._running: list[dict[str, Any]] = []
        self._number = 0
        self._started = time.monotonic()

    def stream(self) -> Iterator[list[dict[str, Any]]]:
        """The events of each step, when it is time for them."""
        yield [self._hello()]
        yield [event for number in range(self._ended) for event in self._old(number)]
        for step in range(1, 1 << 30):
            time.sleep(max(0.0, self._started + step / STEPS_PER_SECOND - time.monotonic()))
            yield list(self._step(step))

    def _event(self, ev: str, step: int, **fields: Any) -> dict[str, Any]:
        self._seq += 1
        t_us = round((time.monotonic() - self._started) * 1e6)
        return {"v": 1, "seq": self._seq, "t_us": t_us, "step": step, "ev": ev, **fields}

    def _hello(self) -> dict[str, Any]:
        model = {
            "name": "synthetic-8b", "n_layers": 32, "n_q": 32, "n_kv": 8, "head_dim": 128, "vocab": VOCABULARY,
            "params": 8_000_000_000, "weight_bytes": 16_000_000_000, "dtype": "bf16",
        }  # fmt: skip
        kv = {
            "block_tok": BLOCK_TOKENS,
            "n_blocks": NUM_BLOCKS,
            "block_bytes": 2 << 20,
            "dtype": "bf16",
        }
        boot = f"{self._random.random()}"
        return self._event(
            "hello", 0, boot_id=boot, model=model, kv=kv, device={"backend": "cpu"}, limits={}
        )

    def _old(self, number: int) -> Iterator[dict[str, Any]]:
        """A request that has ended."""
        req = f"old-{number}/0"
        yield self._event("req.add", 0, req=req, prompt_tok=40, max_new_tok=20, prio=0, arrive_us=0)
        for before, after in (("waiting", "decode"), ("decode", "done")):
            yield self._event(
                "req.state", 0, req=req, **{"from": before, "to": after}, reason="admitted"
            )

    def _step(self, step: int) -> Iterator[dict[str, Any]]:
        ops: list[list[Any]] = []
        for each in [each for each in self._running if each["made"] == OUTPUT_TOKENS]:
            self._running.remove(each)
            ops += [["R", block, 0] for block in each["blocks"]]
            self._free[:0] = each["blocks"]  # other blocks first: in time, all of the pool is used
            yield self._event(
                "req.state",
                step,
                req=each["req"],
                **{"from": "decode", "to": "done"},
                reason="length",
                finish="length",
            )
        while len(self._running) < self._requests:
            self._number += 1
            first = self._number <= self._requests  # the first ones end one after the other
            each = {
                "req": f"synthetic-{self._number}/0",
                "blocks": [],
                "length": 0,
                "made": OUTPUT_TOKENS * self._number // (2 * self._requests) if first else 0,
            }
            self._running.append(each)
            yield self._event(
                "req.add", step, req=each["req"], prompt_tok=PROMPT_TOKENS, max_new_tok=OUTPUT_TOKENS, prio=0,
                arrive_us=round((time.monotonic() - self._started) * 1e6), prompt_ids=list(range(PROMPT_TOKENS)),
                params={"temp": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0, "rep": 1, "seed": 1},
            )  # fmt: skip
            yield self._event(
                "req.state",
                step,
                req=each["req"],
                **{"from": "waiting", "to": "decode"},
                reason="admitted",
            )
            ops += self._grow(each, PROMPT_TOKENS)
        for each in self._running:
            ops += self._grow(each, 1)
        used = NUM_BLOCKS - len(self._free)
        yield self._event(
            "kv",
            step,
            ops=ops,
            used=used,
            cached=0,
            free=len(self._free),
            waste_tok=self._requests * 8,
        )
        yield self._event(
            "step", step, kind="decode", batch=[[each["req"], 1, each["length"]] for each in self._running],
            budget_tok=2048, sched_us=120, fwd_us=30_000, sample_us=900, emit_us=400, idle_us=100, flops=128e9,
            w_bytes=16e9, kv_read_bytes=5e8, kv_write_bytes=1e6,
        )  # fmt: skip
        for each in self._running:
            each["made"] += 1
            yield self._token(step, each)
        if step % (STEPS_PER_SECOND // 2) == 0:
            yield self._event(
                "stat", step, running=self._requests, waiting=0, used=used, cached=0, free=len(self._free), in_tok_s=0,
                out_tok_s=STEPS_PER_SECOND * self._requests, hit_frac=0, obs_frac=0.01,
            )  # fmt: skip

    def _grow(self, each: dict[str, Any], tokens: int) -> list[list[Any]]:
        ops: list[list[Any]] = []
        each["length"] += tokens
        while len(each["blocks"]) * BLOCK_TOKENS < each["length"]:
            block = self._free.pop()
            ops.append(["A", block, each["req"], len(each["blocks"])])
            each["blocks"].append(block)
            if len(each["blocks"]) * BLOCK_TOKENS <= each["length"]:
                ops.append(["H", block, f"{block:016x}"])
        ops.append(
            ["F", each["blocks"][-1], each["length"] - (len(each["blocks"]) - 1) * BLOCK_TOKENS]
        )
        return ops

    def _token(self, step: int, each: dict[str, Any]) -> dict[str, Any]:
        ids = self._random.sample(range(VOCABULARY), 10)
        cand = [
            [token, f" word{token}", -0.4 - 0.7 * rank, 0.6 / (rank + 1)]
            for rank, token in enumerate(ids)
        ]
        return self._event(
            "tok", step, req=each["req"], pos=each["length"], id=ids[0], text=f" word{ids[0]}", src="target", lp=-0.4,
            p_final=0.7, rank=1, ent_bits=1.4, cand=cand, rest_frac=0.05, itl_us=40_000,
            funnel=[["logits", VOCABULARY, 1.0], ["top_k", 40, 0.98], ["top_p", 12, 0.95]],
        )  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """The page's files as `pellucid serve` sends them, and the stream."""

    protocol_version = "HTTP/1.1"
    requests, ended = 32, 0

    def do_GET(self) -> None:
        files = page_files()
        base = f"/page/{files.version}/"
        path = self.path.split("?")[0]
        if path == "/":
            index = files.index(base)
            self._reply(200, "text/html; charset=utf-8", index.encode(), security_policy(index))
        elif path.startswith(base) and (file := files.files.get(path.removeprefix(base))):
            self._reply(200, file.media_type, file.body)
        elif path == "/v1/events":
            self._stream()
        else:
            self._reply(404, "application/json", b'{"error": {"message": "not here"}}')

    def _reply(self, status: int, media_type: str, body: bytes, policy: str = "") -> None:
        self.send_response(status)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        if policy:
            self.send_header("content-security-policy", policy)
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            for events in Events(self.requests, self.ended).stream():
                frames = (
                    f"id: {each['seq']}\nevent: {each['ev']}\ndata: {json.dumps(each)}\n\n"
                    for each in events
                )
                self.wfile.write("".join(frames).encode())
                self.wfile.flush()
        except OSError:
            self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        pass


def measure_start(page: Page, url: str, turns: int = 5) -> None:
    paints, interactive = [], []
    for _ in range(turns):
        page.goto("about:blank")
        page.goto(url)
        page.wait_for_function("() => window.interactive")
        paints.append(
            page.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
            )
        )
        interactive.append(page.evaluate("window.interactive"))
    paint, usable = statistics.median(paints), statistics.median(interactive)
    print(f"first paint {paint:.0f} ms, interactive {usable:.0f} ms, medians of {turns}")


def measure_view(page: Page, url: str, view: str, seconds: float) -> None:
    Handler.ended = ENDED if view == "scroll" else 0
    page.goto("about:blank")
    if view != "empty":
        page.goto(f"{url}/#{'timeline' if view == 'scroll' else view}")
    made_so_far = "0" if view == "empty" else "pellucid.store.tokens.end"
    page.wait_for_timeout(3000)  # modules are compiled, the first requests run
    heap = page.evaluate(HEAP)
    page.evaluate(WATCH)
    tokens = page.evaluate(made_so_far)
    browser = page.context.browser
    browser.start_tracing(page=page, categories=TRACED)
    end = time.monotonic() + seconds
    if view == "scroll":
        box = page.locator(".lanes canvas, main canvas").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    while time.monotonic() < end:
        if view == "scroll":
            page.mouse.wheel(0, 240)
        page.wait_for_timeout(16)
    work = frames_of(json.loads(browser.stop_tracing())["traceEvents"])
    seen = page.evaluate("window.seen")
    made = page.evaluate(made_so_far) - tokens
    grown = page.evaluate(HEAP) - heap
    gaps = sorted(seen["gaps"])

    def at(values: list[float], share: float) -> float:
        return values[min(len(values) - 1, int(share * len(values)))]

    longest = f", longest {max(seen['tasks']):.0f} ms" if seen["tasks"] else ""
    print(
        f"{view}: {made / seconds:.0f} tokens/s for {seconds:.0f} s, {len(work)} frames;"
        f" work of a frame p50 {at(work, 0.5):.1f}, p95 {at(work, 0.95):.1f}, max {work[-1]:.1f} ms;"
        f" between frames p50 {at(gaps, 0.5):.1f}, p95 {at(gaps, 0.95):.1f} ms;"
        f" tasks over 50 ms: {len(seen['tasks'])}{longest}; heap {grown / 1e6:+.1f} MB"
    )


def frames_of(events: list[dict[str, Any]]) -> list[float]:
    """Processor time of the page's main thread between the beginnings of its frames, in milliseconds, sorted."""
    (thread,) = {(each["pid"], each["tid"]) for each in events if each["name"] == FRAME}
    own = [each for each in events if (each["pid"], each["tid"]) == thread]
    begun = sorted(each["ts"] for each in own if each["name"] == FRAME)
    frames, waiting = [], 0.0
    tasks = [
        each for each in own if each["name"] == TASK and "dur" in each
    ]  # not the last one, cut
    for task in sorted(tasks, key=lambda each: each["ts"]):
        waiting += task.get("tdur", 0) / 1000
        at = bisect(begun, task["ts"])
        if at < len(begun) and begun[at] < task["ts"] + task["dur"]:  # the task that draws
            frames.append(waiting)
            waiting = 0.0
    return sorted(frames[1:])


def measure_export(browser: Any, turns: int = 5) -> None:
    """The page as one file: its first paint, and when its recording plays."""
    paints, plays = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.html")
        export_file(path, None)
        for _ in range(turns):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.add_init_script(PLAYS)
            page.goto(path.as_uri())
            while not page.evaluate("window.plays"):
                page.wait_for_timeout(50)
            paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            paints.append(page.evaluate(paint))
            plays.append(page.evaluate("window.plays"))
            page.close()
        size = path.stat().st_size
    paint, play = statistics.median(paints), statistics.median(plays)
    print(
        f"one file of {size} bytes: first paint {paint:.0f} ms, plays after {play:.0f} ms,"
        f" medians of {turns}; the fastest {min(paints):.0f} and {min(plays):.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--view", choices=VIEWS, action="append")
    parser.add_argument("--requests", type=int, default=Handler.requests)
    parser.add_argument("--export", action="store_true", help="measure the page as one file")
    arguments = parser.parse_args()
    Handler.requests = arguments.requests
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        if arguments.export:
            measure_export(browser)
            return
        context = browser.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
        page = context.new_page()
        page.on("pageerror", lambda error: print(f"error: {error}"))
        page.add_init_script(INTERACTIVE)
        measure_start(page, url)
        for view in arguments.view or VIEWS:
            measure_view(page, url, view, arguments.seconds)
        browser.close()
    server.shutdown()


if __name__ == "__main__":
    main()
