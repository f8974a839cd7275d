"""What an engine still keeps about requests that have ended."""

from collections.abc import Mapping


def names_in(root: object, names: set[str]) -> set[str]:
    """The types of the objects that have dictionaries with some of `names` as keys."""
    found, seen, waiting = set[str](), set[int](), [(root, type(root).__name__)]
    while waiting:
        each, owner = waiting.pop()
        if id(each) in seen or isinstance(each, str | bytes | int | float | None):
            continue
        seen.add(id(each))
        if isinstance(each, Mapping):
            if not names.isdisjoint(key for key in each if isinstance(key, str)):
                found.add(owner)
            waiting += [(value, owner) for value in each.values()]
        elif isinstance(each, list | tuple):
            waiting += [(item, owner) for item in each]
        elif type(each).__module__.startswith("pellucid"):
            slots = [slot for base in type(each).__mro__ for slot in getattr(base, "__slots__", ())]
            own = {**getattr(each, "__dict__", {}), **{it: getattr(each, it, None) for it in slots}}
            waiting += [(value, type(each).__name__) for value in own.values()]
    return found
