"""Redaction: takes out of events what people wrote and what the model answered, and hides ids."""

import hashlib
import secrets
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, TypeAlias

Event: TypeAlias = dict[str, Any]

_REQUEST_OF_OP = {"A": 2, "S": 2, "L": 2, "C": 3}  # place of the request in a row of `kv`


class Redactor:
    """Redacts the events of one recording. Equal ids stay equal within it, and mean nothing elsewhere.

    Tokens and texts are left out; lengths, times, probabilities and block ids stay. An event of a kind that
    is not known here is left out whole.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)  # of the hashes; it is not kept
        # What of each event is replaced.
        self._rules: Mapping[str, Callable[[Event], Event]] = {
            "hello": lambda event: {},
            "stat": lambda event: {},
            "gap": lambda event: {},
            "spec": lambda event: {},
            "draft.step": lambda event: {},
            "load": lambda event: {"item": PurePath(event["item"]).name},
            "warn": lambda event: {"msg": event["code"], "hint": None},
            "req.add": lambda event: {
                "parent": self._name(event.get("parent")),
                "prompt_ids": None,
                "caller": self._caller(event),
            },
            "req.state": lambda event: {"blocked_by": self._names(event.get("blocked_by"))},
            "req.prefix": lambda event: {
                "near_req": self._name(event.get("near_req")),
                "diff_ids": None,
            },
            "preempt": lambda event: {"cause_req": self._name(event["cause_req"])},
            "req.ledger": lambda event: {
                name: [[self._name(other), us] for other, us in event[name]]
                for name in ("stalled_by", "blocked_by")
            },
            "step": lambda event: {
                "batch": [[self._name(req), *counts] for req, *counts in event["batch"]]
            },
            "kv": lambda event: {"ops": [self._op(row) for row in event["ops"]]},
            "states": lambda event: {
                "ops": [[op, slot, self._name(req), tok] for op, slot, req, tok in event["ops"]]
            },
            "draft": lambda event: {"draft": [0] * len(event["draft"]), "chosen": None},
            "tok.text": lambda event: {"id": 0, "text": ""},
            "tok": lambda event: {
                "id": 0,
                "text": "",
                "cand": [[0, "", lp, p_final] for _, _, lp, p_final in event["cand"]],
            },
            "snapshot": self._snapshot,
        }

    def __call__(self, event: Event) -> Event | None:
        """The event without contents; None: it is left out."""
        rule = self._rules.get(event["ev"])
        if rule is None:
            return None
        changes = rule(event)
        if "req" in event:
            changes["req"] = self._name(event["req"])
        return _changed(event, changes)

    def _snapshot(self, event: Event) -> Event:
        requests = [
            _changed(
                request,
                {
                    "req": self._name(request["req"]),
                    "caller": self._caller(request),
                    "prompt_ids": None,
                    "output_ids": None,
                },
            )
            for request in event["requests"]
        ]
        blocks = [[block, owners, self._hash(name)] for block, owners, name in event["blocks"]]
        return {"requests": requests, "blocks": blocks}

    def _op(self, row: list[Any]) -> list[Any]:
        changed = list(row)
        if (place := _REQUEST_OF_OP.get(row[0])) is not None:
            changed[place] = self._name(row[place])
        elif row[0] == "H":
            changed[2] = self._hash(row[2])
        return changed

    def _names(self, names: list[str] | None) -> list[str | None] | None:
        return None if names is None else [self._name(name) for name in names]

    def _name(self, name: str | None) -> str | None:
        """The id of a request, hidden, and the number of the completion as it is."""
        if name is None:
            return None
        request_id, slash, index = name.partition("/")
        return f"{self._digest(request_id, 6)}{slash}{index}"

    def _caller(self, request: Event) -> str | None:
        return self._digest(request["caller"], 6) if "caller" in request else None

    def _hash(self, block_hash: str | None) -> str | None:
        """Of a block: who guesses the text could know the true one."""
        return None if block_hash is None else self._digest(block_hash, 8)

    def _digest(self, text: str, num_bytes: int) -> str:
        return hashlib.blake2b(text.encode(), key=self._key, digest_size=num_bytes).hexdigest()


def _changed(record: Event, changes: Event) -> Event:
    """A record with other fields; what becomes None is left out."""
    return {name: value for name, value in {**record, **changes}.items() if value is not None}
