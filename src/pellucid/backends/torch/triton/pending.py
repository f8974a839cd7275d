"""Arrays that are computed when something needs them, so that the kernel that does may do more in the same launch.

A decoder asks for a sum, then for its norm, then for a product of this; each is an op of its own. The sum waits for the
norm, and the norm for the product, which says in which form it reads rows. For all else such an array is a tensor.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor


class Pending(Tensor):  # type: ignore[misc]
    """Numbers in f32, at first none but their shape.

    Args:
        like: has the shape, and is on the same device.
    """

    _value: Tensor | None = None

    def __new__(cls, like: Tensor, *_: Any) -> Any:
        return Tensor._make_wrapper_subclass(  # noqa: SLF001 - PyTorch has no other name for it
            cls, like.shape, dtype=torch.float32, device=like.device
        )

    @property
    def is_known(self) -> bool:
        return self._value is not None

    def value(self) -> Tensor:
        """The numbers."""
        if self._value is None:
            self._value = self.compute()
        return self._value

    def know(self, value: Tensor) -> None:
        """The numbers have been computed elsewhere."""
        self._value = value

    @abstractmethod
    def compute(self) -> Tensor:
        """The numbers, from what they wait for."""

    # Tensor's own would be asked for every attribute, the shape included.
    __torch_function__: ClassVar[Any] = torch._C._disabled_torch_function_impl  # noqa: SLF001 - likewise

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """What PyTorch does with such arrays: sums wait as well."""
        if func is torch.ops.aten.add.Tensor and not kwargs and _are_alike(*args):
            return Sum(*args)
        own = {name: _known(each) for name, each in (kwargs or {}).items()}
        return func(*_known(args), **own)


class Known(Pending):
    """Numbers that are there, whose sums wait."""

    def __init__(self, value: Tensor) -> None:
        self._value = value


class Sum(Pending):
    """x + y."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._terms = x, y

    def terms(self) -> tuple[Tensor, Tensor]:
        x, y = self._terms
        return known(x), known(y)

    def know(self, value: Tensor) -> None:
        super().know(value)
        del self._terms

    def compute(self) -> Tensor:
        x, y = self.terms()
        del self._terms
        return x + y


class ForProducts(Pending):
    """Rows [T, K] that a kernel computes in the form in which `linear_kernel` reads them."""

    _planes: Tensor | None = None

    def rounded(self, num_planes: int) -> Tensor:
        """As `linear.planes_of`: bf16 [planes, T, K / planes]."""
        if self._planes is None or len(self._planes) != num_planes:
            num_rows, num_numbers = self.shape
            shape = num_planes, num_rows, num_numbers // num_planes
            self._planes = torch.empty(shape, dtype=torch.bfloat16, device=self.device)
            self.launch(None, self._planes)
        return self._planes

    def compute(self) -> Tensor:
        y = torch.empty(self.shape, device=self.device)
        self.launch(y, None)
        return y

    @abstractmethod
    def launch(self, y: Tensor | None, planes: Tensor | None) -> None:
        """Writes the numbers in f32, or rounded."""


def known(x: Tensor) -> Tensor:
    """The numbers of an array."""
    return x.value() if isinstance(x, Pending) else x


def _known(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_known(each) for each in value]
    return known(value) if isinstance(value, Pending) else value


def _are_alike(x: Any, y: Any) -> bool:
    return (
        isinstance(x, Tensor)
        and isinstance(y, Tensor)
        and x.shape == y.shape
        and x.dtype == y.dtype == torch.float32
    )
