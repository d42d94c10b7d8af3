"""The sizes that a kind of kernel has are those that its kernels are made with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from models.config import library_models
from models.deployment import A2A, Deployment
from models.dims import DIMS
from models.layer import layer_kernels
from models.routing import RoutingSpec, route
from models.spin import spin
from models.work import WORK_KINDS, Work
from tests.models.layer_cases import decode, deployment, prefill

EP = 8


def works(model: str) -> Iterator[Work]:
    """Of both phases, in every exchange mode and with attention over two ranks."""
    low, normal = deployment(model, EP), deployment(model, EP, "normal")
    made: list[Deployment] = [low, normal, replace(normal, a2a=A2A(backend="none"))]
    made.append(replace(normal, attention_tp=2))
    for one in made:
        batch = decode(EP, 4, 64) if one is low else prefill(EP, 2, 128)
        routing = route(RoutingSpec(), batch.tokens, one.model)
        layer = layer_kernels(one, batch, routing, 0)
        yield from (kernel.work for group in layer.groups.values() for kernel in group)
        yield from layer.flights.values()
    yield spin(4, 1000)


def test_every_kind_has_its_sizes() -> None:
    assert set(DIMS) == set(WORK_KINDS)
    assert all(names == tuple(sorted(names)) for known in DIMS.values() for names in known)


@pytest.mark.parametrize("model", library_models())
def test_kernels_of_every_model_have_the_sizes_of_their_kind(model: str) -> None:
    found = {(work.kind, tuple(name for name, _ in work.dims)) for work in works(model)}
    assert len({kind for kind, _ in found}) > 15
    assert not {pair for pair in found if pair[1] not in DIMS[pair[0]]}
