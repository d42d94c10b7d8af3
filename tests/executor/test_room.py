"""What a job needs of a machine is known, and refused in one line, before a rank starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executor.job import Job
from executor.kernel_set import MissingKernel, MissingResource
from executor.ranks import run
from executor.room import need_bytes, require_peers, require_room
from models.deployment import Fusion
from tests.executor.layer_programs import case, deployment, program

pytestmark = pytest.mark.torch


def job(schedule: str = "baseline", shape: str = "decode uneven") -> Job:
    made = case(shape, 1)
    whole = program(schedule, made)
    return Job(whole, deployment(made), made.batch, made.routing, made.layers, "production")


def test_a_longer_cache_needs_its_own_bytes_more() -> None:
    made = job()
    prefix = made.batch.prefix_tokens
    longer = replace(made.batch, prefix_tokens=((6400 + prefix[0][0], *prefix[0][1:]), prefix[1]))
    sequences, layers, entry = 7, 2, (8 + 4) * 2  # TINY's latent and rope, bf16
    grown = need_bytes(replace(made, batch=longer), 0) - need_bytes(made, 0)
    assert grown == layers * sequences * 6400 * entry


def test_a_rank_that_does_not_fit_is_named() -> None:
    made = job()
    need = [need_bytes(made, rank) for rank in (0, 1)]
    require_room(made, need)
    with pytest.raises(
        MissingResource, match=r"^rank 1: 'baseline' needs at least .* GiB; its GPU"
    ):
        require_room(made, [need[0], need[1] - 1])
    with pytest.raises(MissingResource, match=r"^rank 1:"):
        require_room(made, [need[1] - 1], first_rank=1)


def test_gpus_without_peer_access_are_named() -> None:
    require_peers(1, lambda gpu, peer: False)
    require_peers(3, lambda gpu, peer: True)
    with pytest.raises(MissingResource, match=r"^GPU 1 has no peer access to GPU 2"):
        require_peers(3, lambda gpu, peer: (gpu, peer) != (1, 2))


def test_ranks_must_agree_on_how_often_they_run() -> None:
    made = job()
    assert made.digest == job().digest
    assert made.digest != replace(made, repeats=made.repeats + 1).digest
    assert made.digest != replace(made, flush=True).digest


def test_the_production_set_refuses_a_fused_shared_expert() -> None:
    made = replace(job(), kernels="production")
    fused = replace(made, deployment=replace(made.deployment, fusion=Fusion(1, "per_rank")))
    with pytest.raises(MissingKernel, match="no kernels for a fused shared expert"):
        run(fused)


def test_other_attention_is_refused() -> None:
    made = replace(job(), kernels="reference")
    model = made.deployment.model
    model = replace(model, attention=replace(model.attention, kind="gqa"))
    with pytest.raises(MissingKernel, match="mla attention, not 'gqa'"):
        run(replace(made, deployment=replace(made.deployment, model=model)))


def test_signals_are_refused_before_gpus_are_looked_for() -> None:
    with pytest.raises(MissingKernel, match="signals by blocks"):
        run(job("sbo.v1", "decode"))
