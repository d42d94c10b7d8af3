"""A process that torchrun started, as one rank of a benchmark."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executor.watchdog import Watchdog

# The first rank compiles while the others wait for it.
TIMEOUT_S = 600


def joined(limit_s: float) -> tuple[int, int, Watchdog]:
    """(rank, ranks, watchdog): on its GPU and in the default group, which goes over gloo. The watchdog
    ends the rank after `limit_s` without a beat, from the first beat on. KeyError outside torchrun."""
    from executor.watchdog import Watchdog

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    watchdog = Watchdog(rank, limit_s)
    watchdog.pause("compiling")
    import torch
    import torch.distributed as dist

    from executor.cuda import many_hardware_queues

    many_hardware_queues()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    return rank, ranks, watchdog
