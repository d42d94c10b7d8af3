"""The production set's kernels on one rank without a GPU: its libraries are stood in for by plain
torch, its Triton kernels are interpreted. Run as a module under TRITON_INTERPRET=1."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from executor.kernel_set import kernel_name
from executor.libraries import Scaled
from executor.plain_layer import RankState, plain_model
from executor.production import LAUNCHERS
from executor.production_attention import Launcher
from executor.production_setup import relative_error
from executor.production_state import ProductionState, empty_caches, tokens_by_child
from executor.production_weights import dequantised, production_weights
from executor.reference import Call
from models.deployment import A2A, Attention, Batch, Deployment, Fusion
from models.routing import Routing
from schedules.builders import build
from schedules.split import split_batch
from tests.executor.layer_programs import MACHINE, TINY

MODEL = replace(
    TINY,
    hidden_size=256,
    moe_intermediate_size=128,
    shared_intermediate_size=128,
    attention=Attention("mla", 2, 2, 0, 128, 128, 64, 32, 64),
)
CPU = torch.device("cpu")
MAX_TOKENS = 16


def back(x: Scaled) -> torch.Tensor:
    return x[0].float() * x[1].float().repeat_interleave(128, -1)


class PlainGemm:
    """DeepGEMM's three products in float32, with its layouts asserted."""

    def dense(self, x: Scaled, weight: Scaled, sms: int | None) -> torch.Tensor:
        assert x[1].stride(0) == 1, "dense GEMMs read scales by column"
        return (back(x) @ dequantised(weight).T).bfloat16()

    def contiguous(
        self, x: Scaled, weight: Scaled, expert_of: torch.Tensor, sms: int | None
    ) -> torch.Tensor:
        assert x[1].stride(0) == 1 and len(expert_of) % 128 == 0
        rows = back(x).nan_to_num()
        full = [dequantised((weight[0][e], weight[1][e])) for e in range(len(weight[0]))]
        return torch.stack(
            [row @ full[int(e)].T for row, e in zip(rows, expert_of, strict=True)]
        ).bfloat16()

    def masked(
        self, x: Scaled, weight: Scaled, counts: torch.Tensor, expected: int, sms: int | None
    ) -> torch.Tensor:
        assert expected > 0
        out = torch.full((*x[0].shape[:2], weight[0].shape[1]), float("nan"))
        for e, count in enumerate(counts.tolist()):
            rows = back((x[0][e, :count], x[1][e, :count]))
            out[e, :count] = rows @ dequantised((weight[0][e], weight[1][e])).T
        return out.bfloat16()


class OneRank:
    """DeepEP's calls when all experts are on this rank."""

    def dispatch(
        self, x: Scaled, ids: torch.Tensor, weights: torch.Tensor, *, on_comm: bool
    ) -> Any:
        assert x[1].is_contiguous(), "a dispatch sends scales row by row"
        kept = (ids >= 0).any(1).nonzero(as_tuple=True)[0]
        counts = [int((ids == e).sum()) for e in range(MODEL.n_routed_experts)]
        aligned = [-(-count // 128) * 128 for count in counts]
        return (x[0][kept], x[1][kept]), ids[kept], weights[kept], aligned, (kept, len(ids))

    def combine(self, x: torch.Tensor, handle: Any, *, on_comm: bool) -> torch.Tensor:
        kept, tokens = handle
        return torch.zeros(tokens, x.shape[1], dtype=x.dtype).index_add(0, kept, x)

    def send_dispatch(self, x: torch.Tensor, ids: torch.Tensor) -> Any:
        from executor.small_kernels import quantise

        values, scales = quantise(x, column_major=False)
        experts = MODEL.n_routed_experts
        rows = torch.zeros(experts, MAX_TOKENS, x.shape[1], dtype=values.dtype)
        factors = torch.zeros(experts, MAX_TOKENS, x.shape[1] // 128)
        counts = torch.zeros(experts, dtype=torch.int32)
        for token, slot in (ids >= 0).nonzero().tolist():
            e = int(ids[token, slot])
            rows[e, counts[e]], factors[e, counts[e]] = values[token], scales[token]
            counts[e] += 1
        return (rows, factors), counts, "handle", lambda: None

    def send_combine(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, handle: Any
    ) -> tuple[torch.Tensor, Callable[[], None]]:
        out = torch.zeros(len(ids), x.shape[2])
        seen = [0] * MODEL.n_routed_experts
        for token, slot in (ids >= 0).nonzero().tolist():
            e = int(ids[token, slot])
            out[token] += weights[token, slot] * x[e, seen[e]].float()
            seen[e] += 1
        return out.bfloat16(), lambda: None


def plain_libraries(deployment: Deployment) -> tuple[Any, Any]:
    """Stand-ins for DeepGEMM and DeepEP."""
    return PlainGemm(), OneRank()


def error(
    phase: str,
    schedule: str,
    launchers: Mapping[str, Launcher] = LAUNCHERS,
    libraries: Callable[[Deployment], tuple[Any, Any]] = plain_libraries,
) -> float:
    """Relative error of what one layer adds, against the plain model with the same weights."""
    if phase == "decode":
        batch = Batch("decode", ((1,) * 6,), ((3, 0, 70, 1, 2, 4),))
    else:
        batch = Batch("prefill", ((5, 5, 3),), ((0, 0, 0),))
    rng = np.random.default_rng(0)
    count, k = batch.tokens[0], MODEL.top_k
    drawn = rng.permuted(np.tile(np.arange(8), (count, 1)), axis=1)[:, :k]
    drawn[1, 2] = -1
    routing = Routing((drawn.astype(np.int32),), 8, 1)
    a2a = A2A(mode="low_latency" if phase == "decode" else "normal")
    a2a = replace(a2a, max_dispatch_tokens_per_rank=MAX_TOKENS)
    fusion = Fusion(1, "per_rank") if schedule.endswith("+fused") else Fusion()
    deployment = Deployment(MODEL, MACHINE, 1, a2a=a2a, fusion=fusion)
    program = build(schedule, deployment, batch, routing, layers=1, allow_refused=True)
    cut = split_batch(batch)[2][0]
    weights = production_weights(MODEL, range(8), 1, CPU, fused=fusion.slots > 0)
    state = ProductionState(
        MODEL,
        weights,
        *libraries(deployment),
        tokens_by_child(batch, routing, 0, cut, CPU, fusion),
        empty_caches(MODEL, batch, 0, 1, 1, CPU),
        0,
        1,
        8 + fusion.slots,
    )
    hidden = torch.randn(count, MODEL.hidden_size).bfloat16()
    at = cut.token_index
    buffers = {"in.hidden": hidden, "in.a.hidden": hidden[:at], "in.b.hidden": hidden[at:]}
    for op in program.launches(0):
        launchers[kernel_name(op)](Call(op, 0, buffers, state))
    names = ["L0.a.hidden", "L0.b.hidden"] if schedule.startswith("tbo") else ["L0.hidden"]
    out = torch.cat([buffers[name] for name in names])
    latent = MODEL.attention.kv_lora_rank
    prefix = tuple(
        (state.cache[0][row, :old, :latent].float(), state.cache[0][row, :old, latent:].float())
        for row, old in enumerate(batch.prefix_tokens[0])
    )
    ids = [torch.as_tensor(rows) for rows in routing.ids]
    plain = plain_model(
        MODEL, [weights.plain(CPU)], batch, ids, [RankState(hidden.float(), (prefix,))]
    )
    return relative_error(out, plain[0], hidden)


if __name__ == "__main__":
    torch.manual_seed(0)
    for phase in ("prefill", "decode"):
        for schedule in ("sequential", "tbo"):
            sys.stdout.write(f"{phase} {schedule} {error(phase, schedule):.4f}\n")
