"""API keys, their owners and roles."""

import hashlib
import hmac
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

MIN_KEY_CHARS = 16
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0  # of a caller's share
INFERENCE_KEY, ADMIN_KEY = "PELLUCID_API_KEY", "PELLUCID_ADMIN_KEY"  # in the environment


class Role(Enum):
    """Whether a caller may see its own requests or everything."""

    INFERENCE = "inference"
    ADMIN = "admin"


@dataclass(frozen=True)
class Caller:
    """The sender of a call.

    Attributes:
        name: of the key; callers with the same name see each other's requests, and have one share of the engine
            and one prefix cache.
        weight: of this share.
    """

    name: str
    role: Role
    weight: float = 1.0

    def may_see(self, owner: "Caller") -> bool:
        return self.role is Role.ADMIN or self.name == owner.name


ANYONE = Caller("anyone", Role.ADMIN)  # where there are no keys


class ApiKeys:
    """The keys of a server. Only their hashes are stored.

    Args:
        keys: each key and its owner.

    Raises:
        ValueError: a key is too short to be a secret, or two callers have the same.
    """

    def __init__(self, keys: Iterable[tuple[str, Caller]] = ()) -> None:
        self._callers: dict[bytes, Caller] = {}
        for key, caller in keys:
            if len(key) < MIN_KEY_CHARS:
                raise ValueError(
                    f"the API key of {caller.name!r} has {len(key)} characters; a key needs at least"
                    f" {MIN_KEY_CHARS}"
                )
            if not key.isascii():
                raise ValueError(f"the API key of {caller.name!r} must be ASCII, as headers are")
            if (digest := _digest(key)) in self._callers:
                other = self._callers[digest].name
                raise ValueError(f"{caller.name!r} and {other!r} have the same API key")
            self._callers[digest] = caller

    @property
    def callers(self) -> Collection[Caller]:
        return set(self._callers.values())

    def __bool__(self) -> bool:
        return bool(self._callers)

    def find(self, key: str) -> Caller | None:
        """The owner of a key. Takes the same time for every key."""
        digest = _digest(key)
        found = None
        for known, caller in self._callers.items():
            if hmac.compare_digest(known, digest):
                found = caller
        return found

    @classmethod
    def read(
        cls,
        path: Path | None,
        environment: Mapping[str, str] = os.environ,
        given: Sequence[str] = (),
    ) -> "ApiKeys":
        """The keys of a file, of the environment and of the command line.

        Args:
            path: a text file with a line `ROLE NAME KEY`, or `ROLE NAME KEY weight=W`, for each key; `#` begins a
                comment.
            environment: PELLUCID_API_KEY is a key for inference, PELLUCID_ADMIN_KEY one for everything.
            given: keys for inference, all of one caller.

        Raises:
            ValueError: a line has another form; it names the line and shows no key.
            OSError: the file cannot be read.
        """
        keys = [] if path is None else _parse(path.read_text(encoding="utf-8"), path.name)
        for variable, role in ((INFERENCE_KEY, Role.INFERENCE), (ADMIN_KEY, Role.ADMIN)):
            if key := environment.get(variable):
                keys.append((key, Caller(role.value, role)))
        keys += [(key, Caller(Role.INFERENCE.value, Role.INFERENCE)) for key in given]
        return cls(keys)


def _parse(text: str, name: str) -> list[tuple[str, Caller]]:
    keys: list[tuple[str, Caller]] = []
    roles = {role.value: role for role in Role}
    weights: dict[str, float] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{name}, line {number}"
        if len(words) not in (3, 4) or words[0] not in roles:
            raise ValueError(
                f"{where}: must be 'inference NAME KEY' or 'admin NAME KEY', and may end with 'weight=W'"
            )
        role, owner, key = words[:3]
        weight = _weight(words[3], where) if len(words) == 4 else 1.0
        if weights.setdefault(owner, weight) != weight:
            raise ValueError(f"{where}: {owner!r} has another weight in an earlier line")
        keys.append((key, Caller(owner, roles[role], weight)))
    return keys


def _weight(word: str, where: str) -> float:
    what, _, number = word.partition("=")
    try:
        weight = float(number) if what == "weight" else math.nan
    except ValueError:
        weight = math.nan
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(
            f"{where}: {word!r} must be weight=W with a number in {MIN_WEIGHT:g}..{MAX_WEIGHT:g}"
        )
    return weight


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
