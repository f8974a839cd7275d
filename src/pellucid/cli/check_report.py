"""What a check found, as lines for people and as JSON."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pellucid.cli.output.terminal import MAX_TEXT_WIDTH, page_width, visible
from pellucid.cli.output.units import counted, num_bytes
from pellucid.cli.plan_report import DOES_NOT_FIT, ROWS

if TYPE_CHECKING:
    from pellucid.benchmark.estimate import Number
    from pellucid.checking.report import ChatFacts, EndToken, LayerFacts, ModelFacts, ModelReport

_LABEL_WIDTH = 22  # characters


def print_report(report: "ModelReport", *, is_first: bool) -> None:
    """Writes a report on stdout, a line for each fact, and an empty line before all but the first."""
    if not is_first:
        print()
    if report.refusal is not None:
        print(f"{visible(report.model)}: does not open")
        print(_wrapped(report.refusal), flush=True)
        return
    print(f"{visible(report.model)}: opens")
    for label, text in _rows(report):
        print(_wrapped(text, label), flush=True)


def _rows(report: "ModelReport") -> Iterator[tuple[str, str]]:
    """Labels and texts."""
    assert report.facts is not None and report.chat is not None and report.needs is not None
    for note in report.notes:
        yield "note", note
    yield from _fact_rows(report.facts)
    yield "answers end at", _ends(report.end_tokens)
    yield "conversations", _conversations(report.chat)
    yield from _need_rows(report.needs, report.request_tokens)


def _need_rows(needs: "Mapping[str, Number]", request_tokens: int) -> Iterator[tuple[str, str]]:
    for row in ROWS:
        if (number := needs.get(row.name)) is not None and row.name != "kv_bytes_batch":
            label = row.label
            if row.name == "kv_bytes_per_request":
                label = f"KV cache, {request_tokens:,} tokens"
            yield label, row.show(number.value)
    if (fitting := needs.get("requests_that_fit")) is not None:
        memory = float(fitting.inputs["memory"])
        does_fit = needs["weight_bytes"].value < memory
        yield "free memory", num_bytes(memory) + ("" if does_fit else f": the model {DOES_NOT_FIT}")


def _fact_rows(facts: "ModelFacts") -> Iterator[tuple[str, str]]:
    yield "family", f"{facts.architecture}, {facts.file_format}"
    layers = "; ".join(_layers(group) for group in facts.layers)
    yield "layers", f"{facts.num_layers} of width {facts.hidden_size:,}: {layers}"
    yield "context", f"{facts.context_length:,} tokens"
    yield "vocabulary", f"{facts.vocab_size:,} tokens"
    types = (
        f"{kind.name} {num_bytes(kind.num_bytes)} ({counted(kind.num_tensors, 'tensor')})"
        for kind in facts.types
    )
    yield "stored as", ", ".join(types)


def _layers(group: "LayerFacts") -> str:
    parts = [f"{group.count} with a recurrent state"]
    if group.mixer == "attention":
        heads = f"{group.num_heads} heads of {group.head_dim} on {counted(group.num_kv_heads, 'kv-head')}"
        parts = [f"{group.count} with {heads}"]
    if group.window is not None:
        parts.append(f"a window of {group.window:,}")
    if group.num_experts:
        parts.append(f"{group.num_chosen} of {group.num_experts} experts")
    return ", ".join(parts)


def _ends(tokens: "Sequence[EndToken]") -> str:
    if not tokens:
        return "no token: only max_tokens, a stop string or the context ends them"
    return "; ".join(_end(token) for token in tokens)


def _end(token: "EndToken") -> str:
    shown = str(token.token_id) if token.text is None else f"{token.token_id} {token.text}"
    named_by = ", ".join(token.named_by) or "the family"
    return f"{shown} (by {named_by})"


def _conversations(chat: "ChatFacts") -> str:
    if not chat.has_template:
        return "no chat template: text is continued"
    tools = "takes no tools"
    family = chat.answer_family
    writer = "the checkpoint says" if family == "checkpoint" else f"{family} writes them"
    if chat.takes_tools:
        tools = "takes tools, " + (
            f"calls are read as {writer}"
            if chat.reads_tool_calls
            else "calls are not read from answers"
        )
    reasoning = "no reasoning"
    if chat.reasons:
        switch = chat.reasoning_variable
        reasoning = "reasoning" if switch is None else f"reasoning, by {switch}"
    return f"chat template; {tools}; {reasoning}"


def _wrapped(text: str, label: str = "") -> str:
    """A paragraph that fits stdout, indented, behind its label."""
    first = f"  {label:<{_LABEL_WIDTH}}  " if label else "  "
    return textwrap.fill(
        visible(" ".join(text.split())),
        min(page_width(), MAX_TEXT_WIDTH),
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def report_object(report: "ModelReport") -> dict[str, Any]:
    """Every fact; null and empty lists for a model that does not open."""
    return {"opens": report.refusal is None, **asdict(report)}
