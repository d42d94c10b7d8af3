"""Launches of Triton kernels without what Triton does anew for each: binding, specialising, looking up."""

from __future__ import annotations

from typing import Any

import torch

ALIGNMENT = 16


class Kept:
    """A jitted kernel with its compiled forms, which it launches directly; `options` are Triton's own.

    Triton compiles a form for the arguments' types, for which pointers are divisible by 16, and for
    which integers are 1 or divisible by 16. A form is kept here for the tensors' types and device, all
    of them divisible by 16, and for the very values of all numbers and constants, so that what is found
    is what Triton would choose. Other tensors go Triton's way every time, and so does all in the
    interpreter, which compiles nothing.
    """

    def __init__(self, kernel: Any, **options: int) -> None:
        self._kernel = kernel
        self._options = options
        self._forms: dict[tuple[Any, ...], Any] = {}

    def __call__(
        self,
        grid: tuple[int, int, int],
        tensors: tuple[torch.Tensor, ...],
        *numbers: float,
        **constants: int,
    ) -> None:
        """Launch on the current stream. The kernel takes `tensors`, then `numbers`, then `constants` in
        the order of its parameters: ValueError if it does not."""
        key = (tensors[0].get_device(), numbers, *constants.items(), *[t.dtype for t in tensors])
        form = self._forms.get(key)
        if form is not None and _aligned(tensors):
            form[grid](*tensors, *numbers, *constants.values())
            return
        self._check(tuple(constants), len(tensors) + len(numbers))
        form = self._kernel[grid](*tensors, *numbers, **constants, **self._options)
        if _aligned(tensors):
            self._forms[key] = form

    def _check(self, constants: tuple[str, ...], before: int) -> None:
        expected = tuple(self._kernel.arg_names[before:])
        if constants != expected:
            raise ValueError(f"{self._kernel.__name__} takes {expected} here, not {constants}")


def _aligned(tensors: tuple[torch.Tensor, ...]) -> bool:
    addresses = 0
    for tensor in tensors:
        addresses |= tensor.data_ptr()
    return not addresses % ALIGNMENT
