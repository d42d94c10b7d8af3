"""What benchmarks.production_layers measures and checks: batches, routings and their programs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from models.deployment import Batch, Deployment
from models.routing import Routing, RoutingSpec, route
from scenarios import load
from scenarios.resolve import resolve
from schedules.builders import build
from schedules.program import Program

RANKS = 2
SEQUENCE = 2048
KV_TOKENS = 4096
SCENARIO = "deepseek-v3-h200-ep2-{phase}"


@dataclass(frozen=True)
class Variant:
    """One schedule to measure. `sm_cap` 0 lifts the limit of the GEMMs under two-batch overlap."""

    label: str
    schedule: str
    sm_cap: int | None = None


PREFILL = (
    Variant("sequential", "sequential"),
    Variant("baseline", "baseline"),
    Variant("tbo", "tbo"),
    Variant("tbo uncapped", "tbo", 0),
)
DECODE = (
    Variant("sequential", "sequential"),
    Variant("baseline", "baseline"),
    Variant("tbo", "tbo"),
)


@dataclass(frozen=True)
class Point:
    """One batch at one number of communication SMs, with its programs by label."""

    tokens: int
    comm_sms: int
    deployment: Deployment
    batch: Batch
    routing: Routing
    programs: dict[str, Program]


def uniform(phase: str, tokens: int) -> Batch:
    """Whole prompts of SEQUENCE tokens, or one token of each of `tokens` sequences."""
    if phase == "prefill":
        lens = (min(tokens, SEQUENCE),) * max(1, tokens // SEQUENCE)
        return Batch("prefill", (lens,) * RANKS, ((0,) * len(lens),) * RANKS)
    return Batch("decode", ((1,) * tokens,) * RANKS, ((KV_TOKENS,) * tokens,) * RANKS)


def points(arguments: argparse.Namespace) -> Iterator[Point]:
    """All points of a phase, programs built."""
    base = resolve(load(SCENARIO.format(phase=arguments.phase))).deployment
    sms = arguments.comm_sms if arguments.phase == "prefill" else [base.a2a.num_sms]
    for tokens in arguments.tokens:
        batch = uniform(arguments.phase, tokens)
        for comm in sms:
            yield point(arguments.phase, base, batch, comm, arguments.layers, tokens)


def variants(phase: str) -> tuple[Variant, ...]:
    """Schedules of a phase."""
    return PREFILL if phase == "prefill" else DECODE


def point(phase: str, base: Deployment, batch: Batch, comm: int, layers: int, tokens: int) -> Point:
    """The programs of a batch; routing is uniform with one seed."""
    deployment = replace(base, a2a=replace(base.a2a, num_sms=comm))
    routing = route(RoutingSpec(seed=0), batch.tokens, base.model)
    programs = programs_of(phase, deployment, batch, routing, layers)
    return Point(tokens, comm, deployment, batch, routing, programs)


def programs_of(
    phase: str,
    deployment: Deployment,
    batch: Batch,
    routing: Routing,
    layers: int,
    launch: Literal["eager"] | None = None,
) -> dict[str, Program]:
    """The program of every variant of the phase."""
    return {
        variant.label: build(
            variant.schedule,
            deployment,
            batch,
            routing,
            layers=layers,
            sm_cap=variant.sm_cap,
            launch=launch,
            allow_refused=True,
        )
        for variant in variants(phase)
    }


def checks(phase: str, deployment: Deployment) -> dict[str, tuple[Batch, Routing]]:
    """Small batches whose results are checked: even, uneven ranks, all tokens to one expert."""
    if phase == "prefill":
        even = Batch("prefill", ((128, 128),) * RANKS, ((0, 0),) * RANKS)
        uneven = Batch("prefill", ((192, 192), (96, 96)), ((0, 0),) * RANKS)
    else:
        even = Batch("decode", ((1,) * 32,) * RANKS, ((KV_TOKENS,) * 32,) * RANKS)
        uneven = Batch("decode", ((1,) * 24, (1,) * 6), ((64,) * 24, (300,) * 6))
    found = {
        name: (batch, route(RoutingSpec(seed=0), batch.tokens, deployment.model))
        for name, batch in (("even", even), ("uneven", uneven))
    }
    return found | {"one expert": (even, one_expert(even, deployment))}


def check_points(phase: str, first: Point) -> dict[str, Point]:
    """The checks as points of one eager layer."""
    deployment = first.deployment
    return {
        name: Point(
            0,
            first.comm_sms,
            deployment,
            batch,
            routing,
            programs_of(phase, deployment, batch, routing, 1, "eager"),
        )
        for name, (batch, routing) in checks(phase, deployment).items()
    }


def one_expert(batch: Batch, deployment: Deployment) -> Routing:
    """All tokens of all ranks to one expert of the last rank."""
    ids = []
    for tokens in batch.tokens:
        rows = np.full((tokens, deployment.model.top_k), -1, dtype=np.int32)
        rows[:, 0] = deployment.physical_experts - 3
        ids.append(rows)
    return Routing(tuple(ids), deployment.physical_experts, deployment.ep_size)
