"""What each figure that the page marks M (measured) or C (counted) is, by the engine's events and the server's replies.

Defined anew, without the page's code. Each definition gives the text that the page must show.
"""

import base64
import re
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import cached_property
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.memory.memory_plan import MemoryPlan
from pellucid.observing.page_files import WEB_FOLDER

Event = dict[str, Any]
ENDED = ("done", "cancelled", "failed")


def marked_figures() -> set[tuple[str, str]]:
    """The view and the label of each figure that the page's source marks M or C, or marks as the server says."""
    return {
        (_view_of(path), label)
        for path in sorted(WEB_FOLDER.rglob("*.js"))
        if path.name != "numbers.js" and "vendor" not in path.parts
        for label in _marked_in(path.read_text(encoding="utf-8"))
    }


_MARK = re.compile(
    r'kind="[MC]"|kind=\$\{kind\}|\.\.\.\$\{originOf\(|(?<!\w)(?:measured|counted)\("'
)
_LABEL = re.compile(r'(?:label|of)=(?:"([^"]+)"|\$\{(\w+)\})|^ *(?:\[|)"([^"]+)",', re.MULTILINE)


def _marked_in(source: str) -> Iterator[str]:
    """The label of a mark stands before it, in the same tag or at the beginning of the same row of a table."""
    labels = list(_LABEL.finditer(source))
    for mark in _MARK.finditer(source):
        before = bisect_right([each.start() for each in labels], mark.start())
        quoted, variable, row = labels[before - 1].groups()
        yield quoted or row or f"${variable}"


def _view_of(path: Path) -> str:
    folder, name = path.relative_to(WEB_FOLDER).parts[0], path.stem
    return {"views": name, "lesson": "learn", "app.js": "every view"}.get(folder, folder)


# Numbers as the page prints them.


def _rounded(value: float, digits: int) -> Decimal:
    return Context(prec=digits, rounding=ROUND_HALF_UP).create_decimal(Decimal(value))


def _fixed(value: float, places: int) -> str:
    return str(Decimal(value).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP))


def count(value: float) -> str:
    return f"{floor(value + 0.5):,}"


def digits(value: float) -> str:
    """Three significant digits, four from 100 on."""
    if abs(value) >= 1000:
        return count(value)
    text = f"{_rounded(value, 4 if abs(value) >= 100 else 3):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def several(value: float, noun: str) -> str:
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def percent(share: float) -> str:
    value = share * 100
    if value == 0 or value > 99.9999:
        return f"{round(value)} %"
    if value < 0.01:
        return "< 0.01 %"
    return f"{'> 99.9' if value >= 99.95 else _fixed(value, 2 if value < 1 else 1)} %"


def in_time(us: float) -> str:
    for limit, unit, name in ((1e3, 1, "µs"), (1e6, 1e3, "ms"), (120e6, 1e6, "s")):
        if us < limit:
            return f"{digits(us / unit)} {name}"
    return f"{digits(us / 60e6)} min"


def _in_units(value: float, units: Sequence[str], base: int) -> str:
    index = 0
    while abs(value) >= base and index < len(units) - 1:
        value, index = value / base, index + 1
    return f"{digits(value)} {units[index]}".strip()


def in_bytes(value: float) -> str:
    return _in_units(value, ("B", "KiB", "MiB", "GiB", "TiB"), 1024)


def in_prefix(value: float) -> str:
    return _in_units(value, ("", "k", "M", "G", "T", "P"), 1000)


@dataclass
class Blocks:
    """The pool and the block tables, by the operations of the events kv."""

    tables: dict[str, list[int]] = field(default_factory=dict)
    fill: dict[int, int] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    held_at_end: dict[str, int] = field(default_factory=dict)
    num_at_end: dict[str, int] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def take(self, event: Event, block_tok: int) -> None:
        if event["ev"] == "preempt":
            table = self.tables[event["req"]]
            del table[len(table) - event["freed_blocks"] :]
        elif event["ev"] == "req.state" and event["to"] in ENDED:
            self._ended.add(event["req"])
            self.held_at_end[event["req"]] = self.held(event["req"])
            self.num_at_end[event["req"]] = len(self.tables.get(event["req"], ()))
        elif event["ev"] == "kv":
            for op in event["ops"]:
                self._apply(*op, block_tok)
                # The last step of a request is booked together with what its end released.
                for req in self._ended:
                    self.held_at_end[req] = max(self.held_at_end[req], self.held(req))
            for req in self._ended:
                self.tables.pop(req, None)
            self._ended.clear()

    def _apply(self, op: str, block: int, a: Any, b: Any, block_tok: int) -> None:
        if op == "A":
            self.owners[block], self.fill[block] = 1, 0
            self.tables.setdefault(a, []).append(block)
        elif op == "S":
            self.owners[block] = b
            self.tables.setdefault(a, []).append(block)
        elif op == "C":
            self.owners[block], self.fill[block] = 1, self.fill[a]
            table = self.tables[b]
            table[table.index(a)] = block
        elif op == "F":
            self.fill[block] = a
        elif op == "H":
            self.fill[block] = block_tok
        elif op == "R":
            self.owners[block] = a
            if a == 0:
                for table in self.tables.values():
                    if block in table:
                        table.remove(block)

    def held(self, req: str) -> int:
        return sum(self.fill[block] for block in self.tables.get(req, ()))


@dataclass(frozen=True)
class Moment:
    """What is known where the reader stands.

    Attributes:
        events: all up to there.
        req: the request that is looked at.
        replies: of the server, each with its path, the newest last; a stream as a list.
        plan: of the engine's memory.
        column: of a table of figures.
    """

    events: Sequence[Event]
    req: str
    plan: MemoryPlan
    replies: Sequence[tuple[str, Any]] = ()
    column: str = ""

    def reply(self, route: str) -> Any:
        """The newest."""
        return [each for path, each in self.replies if path.startswith(route)][-1]

    def all(self, name: str) -> list[Event]:
        return [each for each in self.events if each["ev"] == name]

    def own(self, name: str) -> list[Event]:
        """Of the request that is looked at."""
        return [each for each in self.all(name) if each["req"] == self.req]

    @cached_property
    def own_tokens(self) -> list[Event]:
        """Those of the request, whether their choice was observed or not."""
        both = self.own("tok") + self.own("tok.text")
        return sorted(both, key=lambda each: each["seq"])

    @cached_property
    def hello(self) -> Event:
        return self.all("hello")[-1]

    @cached_property
    def added(self) -> Event:
        return self.own("req.add")[0]

    @cached_property
    def blocks(self) -> Blocks:
        blocks = Blocks()
        for each in self.events:
            blocks.take(each, self.hello["kv"]["block_tok"])
        return blocks

    @property
    def cached(self) -> int:
        """Tokens of the request in the cache, or those at its end."""
        return self.blocks.held_at_end.get(self.req, self.blocks.held(self.req))

    @property
    def bytes_per_tok(self) -> float:
        kv = self.hello["kv"]
        return float(kv["block_bytes"] / kv["block_tok"])

    @property
    def kv(self) -> Event:
        """The engine's own counts after the newest operations on blocks."""
        empty = {"used": 0, "cached": 0, "free": self.hello["kv"]["n_blocks"], "waste_tok": 0}
        return (self.all("kv") or [empty])[-1]

    @property
    def own_steps(self) -> list[tuple[Event, int, int]]:
        """The steps that computed something of the request: how many tokens, and up to which of its text."""
        return [
            (step, num_tokens, context)
            for step in self.all("step")
            for name, num_tokens, context in step["batch"]
            if name == self.req
        ]

    # Generate

    def first_token(self) -> str:
        return in_time(self.own_tokens[0]["t_us"] - self.added["arrive_us"])

    def each_token(self) -> str:
        times = [each["t_us"] for each in self.own_tokens]
        return in_time((times[-1] - times[0]) / (len(times) - 1)) if len(times) > 1 else "–"

    def in_the_cache(self) -> str:
        prompt, output = self.added["prompt_tok"], len(self.own_tokens)
        if output > 0 and self.cached == prompt + output - 1:
            return f"{count(self.cached)} = {count(prompt)} + {count(output)} − 1 tokens"
        return f"{count(self.cached)} of {several(prompt + output, 'token')}"

    def passed(self) -> str:
        passed = sum(num_tokens for _, num_tokens, _ in self.own_steps)
        prompt, output = self.added["prompt_tok"], len(self.own_tokens)
        naive = sum(prompt + made for made in range(output))
        return f"{several(passed, 'token')}; without a cache {count(naive)}"

    def bytes_in_the_cache(self) -> str:
        return in_bytes(self.cached * self.bytes_per_tok)

    def rank_and_entropy(self) -> str:
        token = self.own_tokens[-1]
        if token["ev"] == "tok.text":  # computed again for the page
            reply = self.reply("/v1/logits")
            logits = np.frombuffer(base64.b64decode(reply["logits_f32"]), "<f4")
            rank = 1 + int((logits > logits[token["id"]]).sum())
            return f"rank {rank} · entropy {_fixed(reply['stages'][0]['ent_bits'], 2)} bit"
        likelier = sum(each[2] > token["lp"] for each in token["cand"])
        assert token["rank"] == likelier + 1 or likelier == len(token["cand"])
        return f"rank {token['rank']} · entropy {_fixed(token['ent_bits'], 2)} bit"

    def attention(self) -> str:
        reply = self.reply("/v1/attn")
        weights = [each[3] for each in reply["top"]]
        assert reply["sink"] + sum(weights) <= 1 + 1e-6
        return f"recomputed in {digits(reply['recomputed']['dur_us'] / 1000)} ms"

    # Timeline, all of it shown

    def the_step(self) -> str:
        step = self.all("step")[-1]
        return in_time(sum(step[part] for part in STEP_PARTS))

    def share_of_steps(self, *parts: str) -> tuple[float, float]:
        steps = self.all("step")
        spent = sum(each[part] for each in steps for part in parts)
        return spent, max(1, sum(each[part] for each in steps for part in STEP_PARTS))  # none yet

    def forward(self) -> str:
        spent, whole = self.share_of_steps("fwd_us")
        return f"{percent(spent / whole)} of the steps' time"

    def sampling(self) -> str:
        spent, whole = self.share_of_steps("sample_us")
        return f"{percent(spent / whole)} {in_time(spent)}"

    def schedule_and_emit(self) -> str:
        spent, whole = self.share_of_steps("sched_us", "emit_us")
        return f"{percent(spent / whole)} {in_time(spent)}"

    def idle(self) -> str:
        idle = sum(each["idle_us"] for each in self.all("step")[1:])
        _, whole = self.share_of_steps()
        return f"{percent(idle / (whole + idle))} {in_time(idle)}"

    def ledger(self) -> str:
        [ledger] = self.own("req.ledger")
        parts = {name: us for name, us in ledger.items() if name.endswith("_us")}
        total = parts.pop("total_us")
        parts.pop("t_us")
        assert sum(parts.values()) == total
        return "sum of the parts = the request's whole time, exactly"

    def time_in_state(self) -> str:
        """Of a request that has not ended: the time since it arrived, by state."""
        name = self.column
        changes = [(self.added["arrive_us"], "waiting")]
        changes += [(each["t_us"], each["to"]) for each in self.own("req.state")]
        ends = [at for at, _ in changes[1:]] + [self.events[-1]["t_us"]]
        spans = zip(changes, ends, strict=True)
        return in_time(sum(end - at for (at, state), end in spans if state == name))

    # Cache

    def owned(self) -> str:
        used, size = self.kv["used"], self.hello["kv"]["block_bytes"]
        return f"{several(used, 'block')}, {in_bytes(used * size)}"

    def kept(self) -> str:
        return several(self.kv["cached"], "block")

    def free(self) -> str:
        return several(self.kv["free"], "block")

    def wasted(self) -> str:
        return several(self.kv["waste_tok"], "slot")

    def saved(self) -> str:
        extra = sum(max(0, owners - 1) for owners in self.blocks.owners.values())
        return f"{several(extra, 'block')} or {in_bytes(extra * self.hello['kv']['block_bytes'])}"

    def bytes_of_request(self) -> str:
        return in_bytes(self.cached * self.bytes_per_tok)

    def blocks_of_request(self) -> str:
        kv = self.hello["kv"]
        num = self.blocks.num_at_end.get(self.req, len(self.blocks.tables.get(self.req, ())))
        return f"{count(num)} allocated {in_bytes(num * kv['block_bytes'])}"

    def prompt_time(self) -> str:
        tokens = self.own_tokens
        last = tokens[0]["step"] if tokens else self.events[-1]["step"]
        return in_time(sum(step["fwd_us"] for step, *_ in self.own_steps if step["step"] <= last))

    def code_error(self, code: str) -> str:
        reply = self.reply("/v1/kv/blocks")
        own = [x for row in reply["k"] for x in row]
        coded = [x for row in reply[code]["k"]["numbers"] for x in row]
        error = sum((x - y) ** 2 for x, y in zip(coded, own, strict=True))
        return percent((error / sum(x * x for x in own)) ** 0.5)

    def tree(self) -> str:
        nodes = self.reply("/v1/kv/tree")["nodes"]
        parents = [node["parent"] for node in nodes]
        runs = sum(parent is None or parents.count(parent) > 1 for parent in parents)
        return f"{several(len(nodes), 'block')} in {several(runs, 'run')}"

    # Serve

    def owned_at_most(self) -> str:
        most = max((each["used"] for each in self.all("kv")), default=0)
        return percent(most / self.hello["kv"]["n_blocks"])

    def prompts_found(self) -> str:
        prompt_tok = {each["req"]: each["prompt_tok"] for each in self.all("req.add")}
        first: dict[str, int] = {}
        for each in self.all("req.prefix"):
            first.setdefault(each["req"], each["hit_tok"])
        return percent(sum(first.values()) / sum(prompt_tok[req] for req in first))

    def place(self) -> str:
        """The first that waits is at place 1."""
        lines = self.reply("/v1/requests")["data"]
        return str(1 + min(each["queue_position"] for each in lines if each["waits"]))

    # A load

    @property
    def load(self) -> list[Event]:
        """The newest of the discipline that the column shows."""
        loads = [each for path, each in self.replies if path == "/v1/load"]
        return next(each for each in loads[::-1] if each[0]["discipline"] == self.column)

    def at_us(self, state: str) -> dict[int, Event]:
        events = [each for each in self.load if each["ev"] == "load.req"]
        return {each["index"]: each for each in events if each["state"] == state}

    def load_end(self, measured: str, at_us: Sequence[float] = (), percent: int = 50) -> float:
        """In µs, what the server measured; it agrees with the times of the load's events, which it takes beside."""
        end = self.load[-1]
        spread = f"{measured}_seconds"
        us = 1e6 * (end[spread][f"p{percent}"] if spread in end else end[measured])
        if at_us:
            assert us == pytest.approx(np.percentile(at_us, percent), rel=0.05, abs=5000)
        return float(us)

    def since_due(self, state: str) -> list[float]:
        due = {index: each["due_us"] for index, each in self.at_us("sent").items()}
        return [each["at_us"] - due[index] for index, each in self.at_us(state).items()]

    def whole_answers(self) -> str:
        return f"{len(self.at_us('done'))} of {len(self.load[0]['requests'])}"

    def served_after(self) -> str:
        due = min(each["due_us"] for each in self.at_us("sent").values())
        whole = max(each["at_us"] for each in self.at_us("done").values()) - due
        return in_time(self.load_end("seconds", [whole]))

    def load_tokens(self) -> int:
        return sum(each["n_tok"] for each in self.at_us("done").values())

    def output_rate(self) -> str:
        return f"{digits(self.load_tokens() / self.load[-1]['seconds'])} tokens/s"

    def first_token_of_load(self, percent: int) -> str:
        return in_time(self.load_end("first_token", self.since_due("first"), percent))

    def between_tokens(self, percent: int) -> str:
        return in_time(self.load_end("inter_token", percent=percent))

    def whole_answer(self, percent: int) -> str:
        return in_time(self.load_end("end_to_end", self.since_due("done"), percent))

    def goodput(self) -> str:
        """With the limits that the page begins with: half a second, and a tenth for each further token."""
        first = self.at_us("first")
        good = sum(
            first[index]["at_us"] - self.at_us("sent")[index]["due_us"] <= 0.5e6
            and each["at_us"] - first[index]["at_us"] <= 0.1e6 * (each["n_tok"] - 1)
            for index, each in self.at_us("done").items()
        )
        per_second = digits(good / self.load[-1]["seconds"])
        return f"{per_second} /s, {good} of {len(self.load[0]['requests'])}"

    def empty_seats(self) -> str:
        """Of static batches of two."""
        sent = {index: each["at_us"] for index, each in self.at_us("sent").items()}
        ends = {index: each["at_us"] for index, each in self.at_us("done").items()}
        whole = 2 * (max(ends.values()) - min(sent.values()))
        return percent(1 - sum(ends[index] - sent[index] for index in ends) / whole)

    def found_by_load(self) -> str:
        found = sum(each["cached_tok"] for each in self.at_us("first").values())
        return percent(found / self.load[-1]["prompt_tok"])

    # A comparison

    @property
    def comparison(self) -> list[Event]:
        events: list[Event] = self.reply("/v1/compare")
        return events

    @property
    def arm(self) -> str:
        return ARMS.get(self.column, self.column)

    @property
    def arm_steps(self) -> list[Event]:
        return [each for each in self.comparison if each["ev"] == "cmp" and each["arm"] == self.arm]

    def runs_us(self, arm: str) -> list[int]:
        events = [each for each in self.comparison if each["ev"] == "cmp.run"]
        return [each["t_us"] for each in events if each["arm"] == arm]

    def answers(self, arm: str) -> dict[str, list[int]]:
        """The tokens of each request, by its number."""
        answers: dict[str, list[int]] = {}
        for step in self.comparison:
            if step["ev"] == "cmp" and step["arm"] == arm:
                for name, token_ids, *_ in step["new"]:
                    answers.setdefault(name.removeprefix(arm), []).extend(token_ids)
        return answers

    @property
    def num_made(self) -> int:
        return sum(map(len, self.answers(self.arm).values()))

    def tokens_made(self) -> str:
        return count(self.num_made)

    def tokens_passed(self) -> str:
        prompt = len(self.comparison[0]["prompt_ids"])
        lengths = [len(answer) for answer in self.answers(self.arm).values()]
        if self.arm == "naive":
            return count(sum(prompt + made for length in lengths for made in range(length)))
        return count(sum(prompt + length - 1 for length in lengths))

    def operations(self) -> str:
        return in_prefix(self.arm_steps[-1]["flops"])

    def bytes_moved(self) -> str:
        return in_bytes(self.arm_steps[-1]["moved_bytes"])

    def median_us(self, arm: str) -> float:
        return statistics.median_low(self.runs_us(arm))

    def run_time(self) -> str:
        return in_time(self.median_us(self.arm))

    def run_time_of_a_token(self) -> str:
        return in_time(self.median_us(self.arm) / self.num_made)

    def run_times(self) -> str:
        runs = self.runs_us(self.arm)
        return f"{in_time(min(runs))} – {in_time(max(runs))}"

    def held_at_most(self) -> str:
        most = max(each["kv_held_bytes"] for each in self.arm_steps)
        return in_bytes(most) if most else "nothing"

    def same_tokens(self) -> str:
        first = self.comparison[0]["arms"][0]["arm"]
        theirs, own = self.answers(first), self.answers(self.arm)
        same = sum(_num_equal(theirs[name], own[name]) for name in own)
        return f"{count(same)} of {count(sum(map(len, own.values())))}"

    def logprobs_apart(self) -> str:
        most = self.comparison[-1]["arms"][self.arm]["dlogprob_max"]
        return re.sub("e-0", "e-", f"{most:#.2g}") if most else "0"

    def bytes_of_a_token(self) -> str:
        return in_bytes(self.comparison[-1]["arms"][self.arm]["kv_token_bytes"])

    def divergence(self) -> str:
        nats = self.comparison[-1]["arms"][self.arm]["kl_nats"]
        return "< 0.000001" if nats < 1e-6 else digits(nats)

    def same_top(self) -> str:
        return percent(self.comparison[-1]["arms"][self.arm]["same_top"])

    # Drafts: of the newest comparison, otherwise of the request

    @property
    def has_both(self) -> bool:
        return any(path == "/v1/compare" for path, _ in self.replies)

    @property
    def rounds(self) -> list[tuple[int, int]]:
        """Of each, how many drafts there were, and how many were right."""
        if not self.has_both:
            return [(len(each["draft"]), each["n_right"]) for each in self.own("draft")]
        steps = [each for each in self.comparison if each["ev"] == "cmp"]
        return [(len(draft), right) for each in steps for draft, right, _ in each["rounds"]]

    def passes(self) -> str:
        return count(len(self.arm_steps))

    def tokens_a_pass(self) -> str:
        return digits(self.num_made / len(self.arm_steps))

    def drafts_and_right(self) -> str:
        drafted = sum(num for num, _ in self.rounds)
        return f"{count(drafted)}, {percent(sum(right for _, right in self.rounds) / drafted)}"

    def drafting(self) -> str:
        arm = self.comparison[-1]["arms"][self.arm]
        assert arm["draft_us"] < arm["t_us"]
        return in_time(arm["draft_us"])

    def speed_up(self) -> str:
        plain, drafted = self.runs_us("plain"), self.runs_us("drafted")
        if max(plain) >= min(drafted) and max(drafted) >= min(plain):
            return "no more apart than runs of one way are."
        times = self.median_us("plain") / self.median_us("drafted")
        return f"{digits(times)} times as fast."

    def all_the_same(self) -> str:
        [plain], [drafted] = self.answers("plain").values(), self.answers("drafted").values()
        assert plain == drafted
        return f"All {len(plain)} tokens are the same."

    def measured_speed_up(self) -> str:
        if self.has_both:
            return f"{digits(self.median_us('plain') / self.median_us('drafted'))} times as fast"
        sizes = {each["step"]: len(each["batch"]) for each in self.all("step")}
        spent = without = 0.0
        for each in self.all("draft.step"):
            if "plain_us" in each and each["step"] in sizes:
                spent += each["step_us"] + each["draft_us"]
                without += each["plain_us"] * (1 + each["n_right"] / sizes[each["step"]])
        return f"{digits(without / spent)} times as fast"

    def drafts_right(self) -> str:
        drafted = sum(num for num, _ in self.rounds)
        return f"Of {several(drafted, 'draft')} {count(sum(right for _, right in self.rounds))} were equal"

    def acceptance(self) -> str:
        """Of drafts whose forerunners in the round were right."""
        judged = sum(min(num, right + 1) for num, right in self.rounds)
        return f"({count(sum(right for _, right in self.rounds))} of {count(judged)})"

    # Plan, of the loaded model on this machine

    def steps_of(self, kind: str) -> list[Event]:
        return [each for each in self.all("step") if each["kind"] == kind]

    def num_steps(self) -> str:
        return count(len(self.steps_of(self.column)))

    def step_time(self) -> str:
        return in_time(statistics.median(each["fwd_us"] for each in self.steps_of(self.column)))

    def step_ratio(self) -> str:
        machine = self.reply("/v1/estimate")["machine"]

        def by_formula(step: Event) -> float:
            moved = step["w_bytes"] + step["kv_read_bytes"] + step["kv_write_bytes"]
            operations = step["flops"] / machine["flops_per_second"]
            return float(1e6 * max(operations, moved / machine["bandwidth_bytes_per_second"]))

        steps = self.steps_of(self.column)
        return digits(statistics.median(each["fwd_us"] / by_formula(each) for each in steps))

    @property
    def request_bytes(self) -> float:
        return -(-PLANNED_TOK // self.hello["kv"]["block_tok"]) * self.hello["kv"]["block_bytes"]

    def weights(self) -> str:
        return in_bytes(self.plan.weights)

    def keys_and_values(self) -> str:
        return in_bytes(PLANNED_REQUESTS * self.request_bytes)

    def bytes_of_token(self) -> str:
        return in_bytes(self.bytes_per_tok)

    def bytes_of_planned_request(self) -> str:
        num_blocks = self.request_bytes / self.hello["kv"]["block_bytes"]
        return f"{in_bytes(self.request_bytes)} {several(num_blocks, 'block')}"

    def requests_that_fit(self) -> str:
        kv, limits = self.hello["kv"], self.hello["limits"]
        by_blocks = kv["n_blocks"] // (self.request_bytes // kv["block_bytes"])
        return f"{count(min(limits['max_seqs'], by_blocks))} of this length"

    def longest_text(self) -> str:
        kv, limits = self.hello["kv"], self.hello["limits"]
        longest = min(kv["n_blocks"] * kv["block_tok"], limits["max_model_tok"])
        return f"{count(longest)} tokens, by memory and model"

    def planned_passes(self) -> str:
        prompt, output = PLANNED_TOK - PLANNED_OUTPUT_TOK, PLANNED_OUTPUT_TOK
        naive = sum(prompt + made for made in range(output))
        return f"{digits(prompt + output - 1)} without a cache {digits(naive)}"

    # Chat

    def prompts_from_cache(self) -> str:
        """Of all turns, which are the calls of chat completions; the marked text begins with it."""
        computed = 0
        for path, frames in self.replies:
            if path == "/v1/chat/completions":
                usage = [each["usage"] for each in frames if each.get("usage")][-1]
                computed += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        return f"they computed {count(computed)}."

    # Learn, and the header

    def most_per_second(self) -> str:
        return f"{digits(max(each['out_tok_s'] for each in self.all('stat')))} tokens/s"

    def looking(self) -> str:
        return f"looking: {percent(self.all('stat')[-1]['obs_frac'])}"


PLANNED_TOK, PLANNED_OUTPUT_TOK, PLANNED_REQUESTS = 512 + 128, 128, 8  # with which Plan begins
ARMS = {
    "with cache": "cached",
    "without": "naive",
    "one by one": "one",
    "together": "many",
    "without drafts": "plain",
    "with drafts": "drafted",
}
STEP_PARTS = ("sched_us", "fwd_us", "sample_us", "emit_us")
Definition = Callable[[Moment], str]


def _num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens before the first that differs."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


DEFINITIONS: dict[tuple[str, str], Definition] = {
    ("generate", "first token"): Moment.first_token,
    ("generate", "each token"): Moment.each_token,
    ("generate", "in the cache"): Moment.in_the_cache,
    ("generate", "passed the model"): Moment.passed,
    ("generate", "bytes in the cache"): Moment.bytes_in_the_cache,
    ("generate", "rank and entropy"): Moment.rank_and_entropy,
    ("generate", "attention"): Moment.attention,
    ("timeline", "the step"): Moment.the_step,
    ("timeline", "forward"): Moment.forward,
    ("timeline", "sampling"): Moment.sampling,
    ("timeline", "schedule and emit"): Moment.schedule_and_emit,
    ("timeline", "idle"): Moment.idle,
    ("timeline", "the ledger"): Moment.ledger,
    ("timeline", "$name"): Moment.time_in_state,
    ("cache", "owned"): Moment.owned,
    ("cache", "kept for later"): Moment.kept,
    ("cache", "free"): Moment.free,
    ("cache", "wasted"): Moment.wasted,
    ("cache", "saved"): Moment.saved,
    ("cache", "in the cache"): Moment.in_the_cache,
    ("cache", "bytes"): Moment.bytes_of_request,
    ("cache", "blocks"): Moment.blocks_of_request,
    ("cache", "prompt time"): Moment.prompt_time,
    ("cache", "error of 8 bits"): lambda moment: moment.code_error("int8"),
    ("cache", "error of 4 bits"): lambda moment: moment.code_error("int4"),
    ("cache", "blocks of the tree"): Moment.tree,
    ("serve", "blocks owned at once"): Moment.owned_at_most,
    ("serve", "prompt tokens found"): Moment.prompts_found,
    ("serve", "place in the queue"): Moment.place,
    ("serve", "whole answers"): Moment.whole_answers,
    ("serve", "all served after"): Moment.served_after,
    ("serve", "output"): Moment.output_rate,
    ("serve", "first token, p50"): lambda moment: moment.first_token_of_load(50),
    ("serve", "first token, p95"): lambda moment: moment.first_token_of_load(95),
    ("serve", "between tokens, p50"): lambda moment: moment.between_tokens(50),
    ("serve", "between tokens, p99"): lambda moment: moment.between_tokens(99),
    ("serve", "whole answer, p95"): lambda moment: moment.whole_answer(95),
    ("serve", "goodput"): Moment.goodput,
    ("serve", "seats that stood empty"): Moment.empty_seats,
    ("serve", "prompt from the cache"): Moment.found_by_load,
    ("compare", "tokens made"): Moment.tokens_made,
    ("compare", "tokens passed"): Moment.tokens_passed,
    ("compare", "operations"): Moment.operations,
    ("compare", "bytes moved"): Moment.bytes_moved,
    ("compare", "time"): Moment.run_time,
    ("compare", "time of a token"): Moment.run_time_of_a_token,
    ("compare", "times of its runs"): Moment.run_times,
    ("compare", "kept between steps"): Moment.held_at_most,
    ("compare", "tokens as in the first column"): Moment.same_tokens,
    ("compare", "a token keeps"): Moment.bytes_of_a_token,
    ("compare", "KL to f32, nats"): Moment.divergence,
    ("compare", "likeliest token as with f32"): Moment.same_top,
    ("compare", "log-probabilities of these apart"): Moment.logprobs_apart,
    ("speculate", "new tokens"): Moment.tokens_made,
    ("speculate", "passes of the model"): Moment.passes,
    ("speculate", "tokens a pass"): Moment.tokens_a_pass,
    ("speculate", "drafts, of them right"): Moment.drafts_and_right,
    ("speculate", "time"): Moment.run_time,
    ("speculate", "times of its runs"): Moment.run_times,
    ("speculate", "of it drafting"): Moment.drafting,
    ("speculate", "speed-up"): Moment.speed_up,
    ("speculate", "same tokens"): Moment.all_the_same,
    ("speculate", "measured"): Moment.measured_speed_up,
    ("speculate", "drafts that were right"): Moment.drafts_right,
    ("speculate", "a"): Moment.acceptance,
    ("plan", "weights"): Moment.weights,
    ("plan", "keys and values"): Moment.keys_and_values,
    ("plan", "requests that fit"): Moment.requests_that_fit,
    ("plan", "a token's keys and values"): Moment.bytes_of_token,
    ("plan", "one request"): Moment.bytes_of_planned_request,
    ("plan", "longest text alone"): Moment.longest_text,
    ("plan", "tokens passed, an answer"): Moment.planned_passes,
    ("plan", "steps"): Moment.num_steps,
    ("plan", "measured time"): Moment.step_time,
    ("plan", "ratio"): Moment.step_ratio,
    ("chat", "prompt tokens from the cache"): Moment.prompts_from_cache,
    ("learn", "the most tokens a second"): Moment.most_per_second,
    ("every view", "the cost of looking"): Moment.looking,
}

# Figures that a comparison of formats has alone.
OF_FORMATS = {
    ("compare", label)
    for label in ("a token keeps", "KL to f32, nats", "likeliest token as with f32")
}
