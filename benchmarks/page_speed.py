"""The live page's speed in a browser: its first paint, and its frames beside 10,000 blocks and 200 tokens a second.

    python benchmarks/page_speed.py [--seconds 60] [--view generate --view cache ...]

A server of this script sends the page's own files and a stream of synthetic events, as many as a busy engine sends:
eight requests decode at 25 steps a second, each token with ten candidates and its sampling stages, each step with its
times and blocks. Needs Chromium and playwright (`make test-page` installs it).
"""

import argparse
import json
import random
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from playwright.sync_api import Page, sync_playwright

from pellucid.observing.page_files import page_files, security_policy

NUM_BLOCKS, BLOCK_TOKENS = 10_000, 16
REQUESTS, STEPS_PER_SECOND = 8, 25
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
VIEWS = (
    "empty",
    "generate",
    "timeline",
    "cache",
)  # empty: a page without anything, the machine's floor

# From the start of a frame's callbacks until style, layout and paint are done; and tasks of more than 50 ms.
WATCH = """() => {
  const seen = (window.seen = {work: [], gaps: [], tasks: [], last: performance.now()});
  const note = (list) => seen.tasks.push(...list.getEntries().map((each) => each.duration));
  new PerformanceObserver(note).observe({type: "longtask"});
  const channel = new MessageChannel();
  let begun = 0;
  channel.port1.onmessage = () => seen.work.push(performance.now() - begun);
  const frame = () => {
    begun = performance.now();
    seen.gaps.push(begun - seen.last);
    seen.last = begun;
    channel.port2.postMessage(0);
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}"""
# When the shown view is there and can be used.
INTERACTIVE = """
  const look = () => {
    if (document.querySelector("main h2") && document.querySelector("nav a.on")) window.interactive = performance.now();
    else requestAnimationFrame(look);
  };
  addEventListener("DOMContentLoaded", look);
"""
HEAP = "() => { gc(); return performance.memory.usedJSHeapSize; }"


class Events:
    """The events of an engine that is busy from the first second on."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        self._seq = -1
        self._free = list(range(NUM_BLOCKS - 1, -1, -1))
        self._running: list[dict[str, Any]] = []
        self._number = 0
        self._started = time.monotonic()

    def stream(self) -> Iterator[list[dict[str, Any]]]:
        """The events of each step, when it is time for them."""
        yield [self._hello()]
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
        while len(self._running) < REQUESTS:
            self._number += 1
            first = self._number <= REQUESTS  # the first ones end one after the other
            each = {
                "req": f"synthetic-{self._number}/0",
                "blocks": [],
                "length": 0,
                "made": 30 * self._number if first else 0,
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
            "kv", step, ops=ops, used=used, cached=0, free=len(self._free), waste_tok=REQUESTS * 8
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
                "stat", step, running=REQUESTS, waiting=0, used=used, cached=0, free=len(self._free), in_tok_s=0,
                out_tok_s=200, hit_frac=0, obs_frac=0.01,
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
            for events in Events().stream():
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
    page.goto("about:blank")
    if view != "empty":
        page.goto(f"{url}/#{view}")
    made_so_far = "0" if view == "empty" else "pellucid.store.tokens.end"
    page.wait_for_timeout(3000)  # modules are compiled, the first requests run
    heap = page.evaluate(HEAP)
    page.evaluate(WATCH)
    tokens = page.evaluate(made_so_far)
    page.wait_for_timeout(seconds * 1000)
    seen = page.evaluate("window.seen")
    made = page.evaluate(made_so_far) - tokens
    grown = page.evaluate(HEAP) - heap
    work, gaps = sorted(seen["work"]), sorted(seen["gaps"])

    def at(values: list[float], share: float) -> float:
        return values[min(len(values) - 1, int(share * len(values)))]

    longest = f", longest {max(seen['tasks']):.0f} ms" if seen["tasks"] else ""
    print(
        f"{view}: {made / seconds:.0f} tokens/s for {seconds:.0f} s, {len(work)} frames;"
        f" work of a frame p50 {at(work, 0.5):.1f}, p95 {at(work, 0.95):.1f}, max {work[-1]:.1f} ms;"
        f" between frames p50 {at(gaps, 0.5):.1f}, p95 {at(gaps, 0.95):.1f} ms;"
        f" tasks over 50 ms: {len(seen['tasks'])}{longest}; heap {grown / 1e6:+.1f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--view", choices=VIEWS, action="append")
    arguments = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
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
