"""The metadata of a GGUF file, whose arrays are read when somebody asks for them.

Large ones need not become lists of Python's: a vocabulary has hundreds of thousands of strings and numbers.
"""

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pellucid.backends.native import Texts
from pellucid.facts.json_object import JsonObject

Numbers: TypeAlias = npt.NDArray[Any]


class GgufMetadataValues(MutableMapping[str, Any]):
    """Values by key; arrays are lists.

    Raises:
        ValueError: the array that is asked for is damaged.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._arrays: dict[str, Callable[[], Texts | Numbers]] = {}  # those that are no lists yet

    def add_array(self, key: str, read: Callable[[], Texts | Numbers]) -> None:
        """Adds a key whose value `read` returns."""
        self._values[key] = None
        self._arrays[key] = read

    def array(self, key: str) -> Texts | Numbers | None:
        """What `read` returns; None: there is no such array, or it is a list already."""
        return self._arrays[key]() if key in self._arrays else None

    def __getitem__(self, key: str) -> Any:
        if key in self._arrays:
            self._values[key] = self._arrays[key]().tolist()
            del self._arrays[key]
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._arrays.pop(key, None)
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        self._arrays.pop(key, None)
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Forgets all values, without reading them."""
        self._arrays.clear()
        self._values.clear()


def read_texts(metadata: JsonObject, key: str) -> Texts | None:
    """The strings of an array; None: the key is missing.

    Raises:
        ValueError: the value is no such array.
    """
    array = _array(metadata, key)
    if isinstance(array, Texts):
        return array
    strings = metadata.optional_strings(key)
    return None if strings is None else Texts(list(strings))


def read_numbers(metadata: JsonObject, key: str, kinds: str) -> Numbers | None:
    """The numbers of an array; None: the value is no array of numbers of these kinds.

    Args:
        kinds: those of their dtype that are allowed, as in `numpy.dtype.kind`.
    """
    array = _array(metadata, key)
    if array is None and isinstance(values := metadata.values.get(key), list):
        array = np.array(values)
    return array if isinstance(array, np.ndarray) and array.dtype.kind in kinds else None


def _array(metadata: JsonObject, key: str) -> Texts | Numbers | None:
    values = metadata.values
    return values.array(key) if isinstance(values, GgufMetadataValues) else None
