"""A tiny DeepSeek-shaped model, batches that try the exchanges, and the programs of its schedules."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from executor.reference_run import Case
from models.deployment import A2A, Attention, Batch, Deployment, Model
from models.machine import Cost, Fabric, Footprint, HostCosts, Interference, Machine
from models.routing import Routing
from models.work import Grid, Work
from schedules.builders import build
from schedules.program import Program
from schedules.split import split_batch

TINY = Model(
    name="tiny",
    architecture="DeepseekV3ForCausalLM",
    model_type="deepseek_v3",
    hidden_size=16,
    num_layers=2,
    first_k_dense=0,
    intermediate_size=32,
    moe_intermediate_size=8,
    n_routed_experts=8,
    n_shared_experts=1,
    top_k=3,
    n_group=1,
    topk_group=1,
    routed_scaling_factor=2.5,
    scoring="sigmoid",
    norm_topk_prob=True,
    vocab_size=32,
    attention=Attention("mla", 2, 2, 0, 8, 8, 4, 4, 4),
    shared_intermediate_size=8,
)


class NoCosts:
    """Programs are run here, not priced."""

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        raise AssertionError("a run asked for a time")

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        raise AssertionError("a run asked for a footprint")


MACHINE = Machine(
    "tiny", 132, 141.0, NoCosts(), HostCosts(()), Fabric(8, 400.0, 50.0), Interference(4300.0)
)


@dataclass(frozen=True)
class Shape:
    """New tokens by rank and sequence, and how routing treats them."""

    phase: str
    new_tokens: tuple[tuple[int, ...], ...]
    prefix_tokens: tuple[tuple[int, ...], ...]
    routing: str = "random"


SHAPES = {
    "decode": Shape("decode", ((1,) * 6, (1,) * 6), ((3, 0, 5, 1, 2, 4),) * 2),
    "decode uneven": Shape("decode", ((1,) * 7, (1,) * 2), ((3, 0, 5, 1, 2, 4, 1), (2, 2))),
    "decode one rank idle": Shape("decode", ((1,) * 5, ()), ((3, 0, 5, 1, 2), ())),
    "decode one expert": Shape("decode", ((1,) * 4, (1,) * 4), ((2,) * 4,) * 2, "one expert"),
    "decode one rank": Shape("decode", ((1,) * 6,), ((3, 0, 5, 1, 2, 4),)),
    "prefill": Shape("prefill", ((5, 3, 4), (4, 4, 4)), ((0, 2, 0), (1, 0, 0))),
    "prefill two chunk": Shape("prefill", ((12,), (9, 2)), ((2,), (0, 3))),
    "prefill one rank idle": Shape("prefill", ((6, 5), ()), ((0, 0), ())),
    "prefill one expert": Shape("prefill", ((6, 6), (5, 6)), ((0, 0), (0, 0)), "one expert"),
    "prefill one rank": Shape("prefill", ((12,),), ((3,),)),
}


def case(shape: str | Shape, seed: int, *, layers: int = 2) -> Case:
    """The tiny model on a shape, with ids drawn by `seed`; some tokens drop an expert."""
    found = SHAPES[shape] if isinstance(shape, str) else shape
    batch = Batch(
        "decode" if found.phase == "decode" else "prefill", found.new_tokens, found.prefix_tokens
    )
    routing = _routing(batch.tokens, found.routing, np.random.default_rng(seed))
    cuts = split_batch(batch)[2]
    return Case(TINY, batch, routing, cuts, layers=layers, seed=seed)


def _routing(tokens: tuple[int, ...], kind: str, rng: np.random.Generator) -> Routing:
    experts, k = TINY.n_routed_experts, TINY.top_k
    ids = []
    for count in tokens:
        drawn = rng.permuted(np.tile(np.arange(experts), (count, 1)), axis=1)[:, :k]
        if kind == "one expert":
            drawn = np.full((count, k), -1)
            drawn[:, 0] = 5
        elif count:
            drawn[rng.integers(count), k - 1] = -1
        ids.append(drawn.astype(np.int32))
    return Routing(tuple(ids), experts, len(tokens))


def deployment(made: Case) -> Deployment:
    """The tiny model on the ranks of a case: low latency for decode, normal mode for prefill."""
    mode = "low_latency" if made.batch.phase == "decode" else "normal"
    a2a = A2A(mode="low_latency" if mode == "low_latency" else "normal")
    a2a = replace(a2a, max_dispatch_tokens_per_rank=16)
    return Deployment(made.model, MACHINE, made.routing.ep_size, a2a=a2a)


def program(name: str, made: Case) -> Program:
    """A schedule of a case, refused by the serving engine or not, a class for every load."""
    return build(
        name,
        deployment(made),
        made.batch,
        made.routing,
        layers=made.layers,
        fold="exact",
        allow_refused=True,
    )
