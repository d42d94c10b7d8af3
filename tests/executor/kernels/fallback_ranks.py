"""One of two ranks in the interpreter whose peers' memory is out of reach for one of them.

Run as `fallback_ranks.py RANK FOLDER SCHEDULE...`. Prints what open_exchange warned of; the reason why
low latency cannot be; then, for each prefill schedule, the relative error of what a layer adds.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

from executor.collective_exchange import Collective
from executor.kernel_set import MissingResource, kernel_name
from executor.kernels.peer_memory import PeerMemory, alone
from executor.plain_layer import RankState, plain_model
from executor.production_setup import relative_error
from executor.production_state import ProductionState, empty_caches, tokens_by_child
from executor.production_weights import production_weights
from executor.reference import Call
from executor.triton_exchange import TritonExchange, open_exchange
from executor.triton_gemm import TritonGemm
from executor.triton_launchers import LAUNCHERS
from models.deployment import A2A, Batch, Deployment
from models.routing import Routing
from schedules.builders import build
from schedules.split import split_batch
from tests.executor.layer_programs import MACHINE
from tests.executor.production_fakes import CPU, MAX_TOKENS, MODEL

RANKS = 2
BATCH = Batch("prefill", ((5, 5, 3), (4, 3)), ((0, 0, 0), (0, 0)))


def broken_symmetric(nbytes: int, group: Any, device: torch.device) -> PeerMemory:
    """Symmetric memory that rank 1 does not get."""
    if dist.get_rank(group) == 1:
        raise MissingResource("no memory that all 2 ranks can write: refused for a test")
    return alone(nbytes, device)


def deployment_of(mode: str) -> Deployment:
    """Two ranks."""
    a2a = replace(A2A(mode="normal"), max_dispatch_tokens_per_rank=MAX_TOKENS)
    if mode == "low_latency":
        a2a = replace(a2a, mode="low_latency")
    return Deployment(MODEL, MACHINE, RANKS, a2a=a2a)


def drawn_routing() -> Routing:
    """Distinct experts for every token of both ranks, one of them dropped."""
    rng = np.random.default_rng(0)
    ids = []
    for count in BATCH.tokens:
        one = rng.permuted(np.tile(np.arange(8), (count, 1)), axis=1)[:, : MODEL.top_k]
        one[1, 2] = -1
        ids.append(one.astype(np.int32))
    return Routing(tuple(ids), 8, RANKS)


def error(rank: int, schedule: str, exchange: TritonExchange) -> float:
    """This rank's relative error of one layer against the plain model of both ranks."""
    deployment, routing = deployment_of("normal"), drawn_routing()
    program = build(schedule, deployment, BATCH, routing, layers=1, allow_refused=True)
    cut = split_batch(BATCH)[2][rank]
    weights = production_weights(MODEL, range(4 * rank, 4 * rank + 4), 1, CPU)
    gemm: Any = TritonGemm(CPU)
    library: Any = exchange
    state = ProductionState(
        MODEL, weights, gemm, library, tokens_by_child(BATCH, routing, rank, cut, CPU),
        empty_caches(MODEL, BATCH, rank, 1, 1, CPU), rank, RANKS, 8,
    )  # fmt: skip
    hidden = [
        torch.randn(count, MODEL.hidden_size, generator=torch.Generator().manual_seed(peer))
        for peer, count in enumerate(BATCH.tokens)
    ]
    mine, at = hidden[rank].bfloat16(), cut.token_index
    buffers: dict[str, Any] = {
        "in.hidden": mine,
        "in.a.hidden": mine[:at],
        "in.b.hidden": mine[at:],
    }
    for op in program.launches(rank):
        LAUNCHERS[kernel_name(op)](Call(op, rank, buffers, state))
    names = ["L0.a.hidden", "L0.b.hidden"] if schedule == "tbo" else ["L0.hidden"]
    out = torch.cat([buffers[name] for name in names])
    width = MODEL.attention.kv_lora_rank, MODEL.attention.qk_rope_head_dim
    nothing = (torch.zeros(0, width[0]), torch.zeros(0, width[1]))
    states = [
        RankState(x.bfloat16().float(), (tuple(nothing for _ in old),))
        for x, old in zip(hidden, BATCH.prefix_tokens, strict=True)
    ]
    ids = [torch.as_tensor(rows) for rows in routing.ids]
    plain = plain_model(MODEL, [weights.plain(CPU)], BATCH, ids, states)
    return relative_error(out, plain[rank], mine)


def main() -> None:
    """Meet, fall back, run."""
    rank, folder, schedules = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=RANKS)
    broken = patch("executor.triton_exchange.symmetric", broken_symmetric)
    with broken, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exchange = open_exchange(deployment_of("normal"), MAX_TOKENS, dist.group.WORLD, CPU)
    assert isinstance(exchange.normal, Collective)
    lines = [str(warning.message) for warning in caught if warning.category is UserWarning]
    try:
        with broken:
            open_exchange(deployment_of("low_latency"), MAX_TOKENS, dist.group.WORLD, CPU)
    except MissingResource as reason:
        lines.append(str(reason))
    lines += [f"{schedule} {error(rank, schedule, exchange):.4f}" for schedule in schedules]
    sys.stdout.write("\n".join(lines) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
