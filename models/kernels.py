"""Assembling kernels into the chain of a layer, with the buffers that they read and write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from models.deployment import Deployment, Kernel
from models.work import Work

# Which library launches a kernel of a kind, hence what the launch costs the host. Source: SGLang
# 0.5.23's kernels (sgl_kernel and torch extensions, DeepGEMM, Triton, DeepEP).
_HOST_CLASS: Mapping[str, str] = {
    "gemm": "cpp",
    "grouped_gemm_masked": "cpp",
    "grouped_gemm_contiguous": "cpp",
    "permute": "triton",
    "unpermute": "triton",
    "layout": "deepep",
    "notify": "deepep",
    "dispatch": "deepep",
    "combine": "deepep",
    "dispatch_send": "deepep",
    "dispatch_recv": "deepep",
    "combine_send": "deepep",
    "combine_recv": "deepep",
}


def host_class(kind: str) -> str:
    """The host cost class of a launch of `kind`."""
    return _HOST_CLASS.get(kind, "torch")


@dataclass
class Assembly:
    """Kernels of one layer as they are added, with their buffers' bytes.

    A buffer of 0 bytes is part of memory that outlives the layer (the KV cache, the exchange
    buffers), which `models.memory` counts once.
    """

    deployment: Deployment
    buffers: dict[str, int] = field(default_factory=dict)

    def kernel(
        self, name: str, work: Work, reads: tuple[str, ...], writes: Mapping[str, int]
    ) -> Kernel:
        """A kernel that reads known buffers and writes buffers of the given bytes."""
        for buffer, nbytes in writes.items():
            self.buffers[buffer] = max(nbytes, self.buffers.get(buffer, 0))
        for buffer in reads:
            self.buffers.setdefault(buffer, 0)
        grid = self.deployment.machine.grid(work.kind)
        return Kernel(name, work, grid, host_class(work.kind), reads, tuple(writes))
