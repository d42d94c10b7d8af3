"""Memory that every rank of a node can write: a region of the same size on each GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from executor.kernel_set import MissingResource
from executor.kernels.signals import error_word

ALIGNMENT = 1024


@dataclass(frozen=True)
class PeerMemory:
    """One rank's view. `own` uint8 is its region, `addresses` int64 [W] (on the GPU) every rank's
    region as this rank reaches it; all regions begin as zeros. `held` keeps the peers' mappings."""

    own: torch.Tensor
    addresses: torch.Tensor
    rank: int
    held: Any = None

    @property
    def ranks(self) -> int:
        """Number of regions."""
        return self.addresses.numel()

    def view(self, at: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in the own region, `at` bytes from its beginning."""
        count = 1
        for size in shape:
            count *= size
        return self.own[at : at + count * dtype.itemsize].view(dtype).view(shape)


def symmetric(nbytes: int, group: Any, device: torch.device) -> PeerMemory:
    """Regions on the GPUs of a process group, through torch's symmetric memory.

    Multicast stays off: nothing here uses it. MissingResource where peers cannot reach each other.
    """
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric_memory

    ranks = dist.get_world_size(group)
    if ranks == 1:
        return alone(nbytes, device)
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    try:
        own = symmetric_memory.empty(nbytes, dtype=torch.uint8, device=device)
        handle = symmetric_memory.rendezvous(own, group)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise MissingResource(f"no memory that all {ranks} ranks can write: {reason}") from None
    addresses = torch.tensor(list(handle.buffer_ptrs), dtype=torch.int64, device=device)
    return _cleared(PeerMemory(own, addresses, dist.get_rank(group), handle), group)


def by_handles(nbytes: int, group: Any, device: torch.device) -> PeerMemory:
    """The same through CUDA's interprocess handles, where symmetric memory is missing."""
    import torch.distributed as dist

    own = torch.empty(nbytes, dtype=torch.uint8, device=device)
    handles: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(handles, own.untyped_storage()._share_cuda_(), group=group)
    rank = dist.get_rank(group)
    regions = []
    for peer, (_, *handle) in enumerate(handles):
        if peer == rank:
            regions.append(own)
            continue
        storage = torch.UntypedStorage._new_shared_cuda(device.index, *handle)
        regions.append(torch.empty(0, dtype=torch.uint8, device=device).set_(storage))
    addresses = torch.tensor([region.data_ptr() for region in regions], device=device)
    return _cleared(PeerMemory(own, addresses, rank, regions), group)


def _cleared(memory: PeerMemory, group: Any) -> PeerMemory:
    """Zeros, once every rank's are."""
    import torch.distributed as dist

    memory.own.zero_()
    torch.cuda.synchronize()
    dist.barrier(group)
    return memory


def alone(nbytes: int, device: torch.device | str) -> PeerMemory:
    """The region of a single rank."""
    return together(1, nbytes, device)[0]


def together(ranks: int, nbytes: int, device: torch.device | str) -> list[PeerMemory]:
    """Regions of ranks that live in this process, on one device: what the kernels' tests run on."""
    regions = [torch.zeros(nbytes, dtype=torch.uint8, device=device) for _ in range(ranks)]
    addresses = torch.tensor([region.data_ptr() for region in regions], device=device)
    return [PeerMemory(region, addresses, rank, regions) for rank, region in enumerate(regions)]


class Layout:
    """Lays parts of a region out one after another, each aligned."""

    def __init__(self) -> None:
        self.nbytes = 0

    def add(self, nbytes: int) -> int:
        """Where a part of `nbytes` begins."""
        at = self.nbytes
        self.nbytes = -(-(at + nbytes) // ALIGNMENT) * ALIGNMENT
        return at


Places = TypeVar("Places")


class Buffers(Generic[Places]):
    """What an exchange keeps for each of its buffers, which take turns: the `places` of its parts in the
    region, and `tickets` int32 [buffers, n] that the last program of a kernel is found by. `error` is
    the word that waits report in."""

    def __init__(
        self, memory: PeerMemory, place: Callable[[Layout], Places], tickets: int, buffers: int
    ) -> None:
        device = memory.own.device
        layout = Layout()
        self.places = [place(layout) for _ in range(buffers)]
        self.tickets = torch.zeros(buffers, tickets, dtype=torch.int32, device=device)
        self.error = error_word(device)


def region_bytes(place: Callable[[Layout], object], buffers: int) -> int:
    """Peer memory that a rank needs for as many buffers."""
    layout = Layout()
    for _ in range(buffers):
        place(layout)
    return layout.nbytes
