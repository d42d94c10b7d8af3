"""Exchange and experts in DeepEP's normal mode: cast, layout, notify, transfer, contiguous GEMMs."""

from __future__ import annotations

from models.counts import BF16, FP32, activation_bytes, elementwise, padded_rows, quantise
from models.deployment import Kernel
from models.exchanges import copies, payload_bytes
from models.expert_kernels import Groups, exchange_kernel, expert_pair, expert_rows
from models.kernels import Assembly
from models.routing import Routing
from models.work import work


def normal_groups(build: Assembly, routing: Routing, rank: int) -> Groups:
    """Groups Da Db X Ca Cb of one rank, from `x2` and `topk` to `routed`."""
    deployment = build.deployment
    tokens, hidden = routing.tokens[rank], deployment.model.hidden_size
    received = int(copies(routing, "normal")[:, rank].sum())
    cast, sent = _cast(build, tokens)
    layout = work("layout", read_bytes=tokens * routing.top_k * FP32, tokens=tokens)
    # One flag per (token, rank), one count per rank and per expert; sizes of DeepEP's layout tensors.
    flags = tokens * deployment.ep_size + FP32 * (deployment.ep_size + routing.num_physical)
    prefix = FP32 * deployment.ep_size * deployment.ep_size
    arrived = {"recv": received * payload_bytes(deployment, "dispatch")}
    inputs = (sent, "topk", "layout", "prefix")
    returned = ("expert_out", "prefix", "combine.prefix")
    return {
        "Da": cast,
        "Db": (
            build.kernel("layout", layout, ("topk",), {"layout": flags}),
            exchange_kernel(
                build, routing, rank, "dispatch.notify", ("layout",), {"prefix": prefix}
            ),
            exchange_kernel(build, routing, rank, "dispatch", inputs, arrived),
        ),
        "X": _experts(build, routing, rank, received),
        "Ca": (),
        "Cb": (
            exchange_kernel(
                build, routing, rank, "combine.notify", ("prefix",), {"combine.prefix": prefix}
            ),
            exchange_kernel(
                build, routing, rank, "combine", returned, {"routed": tokens * hidden * BF16}
            ),
        ),
    }


def _cast(build: Assembly, tokens: int) -> tuple[tuple[Kernel, ...], str]:
    """The fp8 cast of what is sent, and the buffer that is sent."""
    if build.deployment.quantization.dispatch != "fp8":
        return (), "x2"
    hidden = build.deployment.model.hidden_size
    packed = {"x2_8": activation_bytes(tokens, hidden, "fp8_block")}
    size = quantise(tokens, hidden, "fp8_block")
    return (build.kernel("quantise", size, ("x2",), packed),), "x2_8"


def _experts(build: Assembly, routing: Routing, rank: int, received: int) -> tuple[Kernel, ...]:
    """Received tokens to padded expert rows, the GEMM pair, and the weighted sum per token."""
    deployment, hidden = build.deployment, build.deployment.model.hidden_size
    rows = expert_rows(routing, rank)
    padded = padded_rows(rows)
    copied = activation_bytes(sum(rows), hidden, deployment.quantization.weights)
    gathered = activation_bytes(padded, hidden, deployment.quantization.weights)
    out = received * hidden * BF16
    scatter = elementwise(
        "permute", sum(rows), hidden, received * payload_bytes(deployment, "dispatch"), copied
    )
    reduce = elementwise("unpermute", received, hidden, sum(rows) * hidden * BF16, out)
    return (
        build.kernel("permute", scatter, ("recv",), {"rows": gathered}),
        *expert_pair(build, "grouped_gemm_contiguous", "rows", rows, padded),
        build.kernel("unpermute", reduce, ("down", "recv"), {"expert_out": out}),
    )
