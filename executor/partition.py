"""SM budgets for kernels that take none: CUDA green contexts, through torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from executor.kernel_set import MissingResource


class Partitions:
    """Green contexts of the current device by number of SMs, made once each.

    The driver hands out SMs in groups, so a partition may be larger than asked for by less than one
    group (8 SMs on Hopper).
    """

    def __init__(self) -> None:
        self._contexts: dict[int, Any] = {}

    @contextmanager
    def limited(self, num_sms: int) -> Iterator[None]:
        """Work of the current stream inside this block runs on at most `num_sms` SMs; what follows on
        the stream waits for it. MissingResource where torch or the driver has no green contexts."""
        context = self._context(num_sms)
        context.set_context()
        try:
            yield
        finally:
            context.pop_context()

    def _context(self, num_sms: int) -> Any:
        if num_sms not in self._contexts:
            self._contexts[num_sms] = _create(num_sms, torch.cuda.current_device())
        return self._contexts[num_sms]


def _create(num_sms: int, device: int) -> Any:
    try:
        from torch.cuda.green_contexts import SUPPORTED, GreenContext
    except ImportError:
        raise MissingResource(
            f"an SM budget of {num_sms} for a kernel that takes none needs torch's green contexts; "
            f"torch {torch.__version__} has none"
        ) from None
    if not SUPPORTED:
        raise MissingResource(f"torch {torch.__version__} is built without green contexts")
    try:
        return GreenContext.create(num_sms=num_sms, device_id=device)
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise MissingResource(f"no green context of {num_sms} SMs: {first}") from None
