"""Deployments, batches and routings that the layer tests share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from models.config import load_model
from models.deployment import A2A, Batch, Deployment, Kernel, LayerKernels
from models.machine import Cost, Fabric, Footprint, HostCosts, Interference, Machine
from models.routing import Routing
from models.work import Grid, Work


class NoCosts:
    """Layers are counted, not priced, in these tests."""

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        raise AssertionError("counting a layer asked for a time")

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        raise AssertionError("counting a layer asked for a footprint")


MACHINE = Machine(
    "counting",
    132,
    141.0,
    NoCosts(),
    HostCosts(()),
    Fabric(gpus_per_node=8, nvlink_gbps=450.0, nic_gbps=50.0),
    Interference(4300.0),
)


def deployment(model: str = "deepseek-v3", ep: int = 8, mode: str = "low_latency") -> Deployment:
    """`model` on `ep` GPUs of 8-GPU nodes."""
    a2a = A2A(mode="normal" if mode == "normal" else "low_latency")
    return Deployment(load_model(model), MACHINE, ep, a2a=a2a)


def decode(ep: int, sequences: int, prefix: int) -> Batch:
    """Every rank decodes one token of each of `sequences` sequences."""
    return Batch("decode", ((1,) * sequences,) * ep, ((prefix,) * sequences,) * ep)


def prefill(ep: int, sequences: int, length: int) -> Batch:
    """Every rank reads `sequences` new prompts."""
    return Batch("prefill", ((length,) * sequences,) * ep, ((0,) * sequences,) * ep)


def spread(ep: int, tokens: int, experts: int = 256, top_k: int = 8) -> Routing:
    """Token i takes expert i and every (experts / top_k)-th after it: all experts equally loaded."""
    step = experts // top_k
    first = np.arange(tokens)[:, None]
    ids = ((first + step * np.arange(top_k)[None, :]) % experts).astype(np.int32)
    return Routing((ids,) * ep, experts, ep)


def kernel(layer: LayerKernels, name: str) -> Kernel:
    """The kernel called `name`."""
    found = [k for group in layer.groups.values() for k in group if k.name == name]
    assert len(found) == 1, [k.name for group in layer.groups.values() for k in group]
    return found[0]


def with_fusion(base: Deployment) -> Deployment:
    """The same deployment with one private shared slot per rank."""
    return replace(base, fusion=replace(base.fusion, slots=1, layout="per_rank"))
