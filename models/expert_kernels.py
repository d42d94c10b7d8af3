"""What both exchange modes share: a rank's expert rows, the grouped GEMM pair, exchange kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from models.counts import BF16, activation_bytes, grouped_gemm
from models.deployment import Kernel
from models.exchanges import exchange_work, nodes_of
from models.kernels import Assembly
from models.routing import Routing
from models.work import work

Groups = dict[str, tuple[Kernel, ...]]
ExchangeName = Literal["dispatch", "combine"]
Role = Literal["notify", "send", "recv", "whole"]
_PARTS: Mapping[str, Role] = {"": "whole", "notify": "notify", "send": "send", "recv": "recv"}


def expert_rows(routing: Routing, rank: int) -> tuple[int, ...]:
    """Tokens of every row of the rank's grouped GEMM, fused shared slots included."""
    return tuple(int(count) for count in routing.local_expert_tokens()[rank])


def exchange_kernel(
    build: Assembly,
    routing: Routing,
    rank: int,
    name: str,
    reads: tuple[str, ...],
    writes: Mapping[str, int],
) -> Kernel:
    """The kernel called `name`: `dispatch`, `dispatch.notify`, `combine.recv`, ..."""
    exchange: ExchangeName = "dispatch" if name.startswith("dispatch") else "combine"
    role = _PARTS[name.partition(".")[2]]
    deployment = build.deployment
    if role == "notify":
        size = work(
            "notify",
            combine=int(exchange == "combine"),
            ep_size=deployment.ep_size,
            nodes=nodes_of(deployment),
            tokens=max(routing.tokens),
        )
    else:
        kind = exchange if role == "whole" else f"{exchange}_{role}"
        size = exchange_work(deployment, routing, rank, exchange, kind)
    kernel = build.kernel(name, size, reads, writes)
    if role == "whole":
        budget = replace(kernel.grid, sm_budget=deployment.a2a.num_sms)
        kernel = replace(kernel, grid=budget)
    return replace(kernel, exchange=exchange, role=role)


def expert_pair(
    build: Assembly, kind: str, source: str, rows: tuple[int, ...], allocated: int
) -> tuple[Kernel, Kernel, Kernel]:
    """`gemm1`, `act` (silu, multiply and quantise in one kernel) and `gemm2`, from `source` to `down`.

    `allocated` rows are in the buffers. The masked pair's `gemm2` can raise signals, one per 64 rows
    of an expert (SGLang's Hopper path).
    """
    model, weights = build.deployment.model, build.deployment.quantization.weights
    inner, hidden = model.moe_intermediate_size, model.hidden_size
    first = grouped_gemm(kind, rows, 2 * inner, hidden, weights, 1)
    second = grouped_gemm(kind, rows, hidden, inner, weights, 2)
    masked = kind == "grouped_gemm_masked"
    if masked:
        second = replace(second, block_rows=64)
    computed = sum(rows) if masked else first.dim("padded")
    act = work(
        "silu_mul",
        read_bytes=computed * 2 * inner * BF16,
        write_bytes=activation_bytes(computed, inner, weights),
        rows=computed,
        columns=inner,
        active=first.dim("active"),
        masked=int(masked),
        hidden=hidden,
        bits={"bf16": 16, "fp8_block": 8, "nvfp4": 4}[weights],
    )
    stored = activation_bytes(allocated, inner, weights)
    return (
        build.kernel("gemm1", first, (source,), {"gate_up": allocated * 2 * inner * BF16}),
        build.kernel("act", act, ("gate_up",), {"act.out": stored}),
        build.kernel("gemm2", second, ("act.out",), {"down": allocated * hidden * BF16}),
    )
