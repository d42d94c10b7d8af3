"""Exchange and experts in DeepEP's low-latency mode: send, receive, masked GEMMs, send, receive.

The send of the dispatch casts to fp8 and the receive of the combine sums the weighted copies, so
neither is a kernel of its own. What peers write lands in the exchange buffers, which live as long as
the process and are counted by `models.memory`; hence their 0 bytes here.
"""

from __future__ import annotations

from models.counts import BF16, activation_bytes
from models.expert_kernels import Groups, exchange_kernel, expert_pair, expert_rows
from models.kernels import Assembly
from models.routing import Routing


def low_latency_groups(build: Assembly, routing: Routing, rank: int) -> Groups:
    """Groups Da Db X Ca Cb of one rank, from `x2` and `topk` to `routed`."""
    deployment = build.deployment
    tokens, hidden = routing.tokens[rank], deployment.model.hidden_size
    rows = expert_rows(routing, rank)
    allocated = len(rows) * deployment.a2a.max_dispatch_tokens_per_rank * deployment.ep_size
    fmt = "fp8_block" if deployment.quantization.dispatch == "fp8" else "bf16"
    arrived = {"recv": activation_bytes(allocated, hidden, fmt)}
    summed = {"routed": tokens * hidden * BF16}
    return {
        "Da": (
            exchange_kernel(
                build, routing, rank, "dispatch.send", ("x2", "topk"), {"dispatch_buffer": 0}
            ),
        ),
        "Db": (
            exchange_kernel(build, routing, rank, "dispatch.recv", ("dispatch_buffer",), arrived),
        ),
        "X": expert_pair(build, "grouped_gemm_masked", "recv", rows, allocated),
        "Ca": (
            exchange_kernel(
                build, routing, rank, "combine.send", ("down", "recv"), {"combine_buffer": 0}
            ),
        ),
        "Cb": (
            exchange_kernel(
                build, routing, rank, "combine.recv", ("combine_buffer", "topk"), summed
            ),
        ),
    }
