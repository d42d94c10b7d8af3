"""Loads of the all-to-all: what every rank's ports carry, and the work of its kernels.

Low latency sends one message per (token, expert). Normal mode sends a token once to every node that
needs it, to the GPU with the sender's own place in that node, which passes it on over NVLink, once per
rank (DeepEP). Loopback is part of all counts.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from models.counts import BF16, FP32, SCALE_BLOCK
from models.deployment import Deployment
from models.routing import Routing
from models.work import Work, work

Counts = npt.NDArray[np.int64]
LL_HEADER_BYTES = 16
# An expert id of eight bytes and a weight of four travel with a normal-mode token (DeepEP 1.2.1).
TOPK_ENTRY_BYTES = 12


def payload_bytes(deployment: Deployment, exchange: str) -> int:
    """Bytes of one token copy: dispatch in the dispatch format, combine in bf16; a low-latency
    dispatch adds a header, a normal one the token's expert ids and weights (DeepEP's layouts)."""
    hidden = deployment.model.hidden_size
    if exchange == "combine":
        return hidden * BF16
    fp8 = deployment.quantization.dispatch == "fp8"
    data = hidden + FP32 * -(-hidden // SCALE_BLOCK) if fp8 else hidden * BF16
    if deployment.a2a.mode == "low_latency":
        return data + LL_HEADER_BYTES
    return data + TOPK_ENTRY_BYTES * deployment.model.top_k


@lru_cache(maxsize=256)
def copies(routing: Routing, mode: str) -> Counts:
    """Token copies from source to destination rank, int64[W, W]: per expert in low latency, per rank
    in normal mode. The combine sends the transpose."""
    return routing.rank_copies() if mode == "low_latency" else routing.distinct_tokens()


@lru_cache(maxsize=256)
def node_ports(routing: Routing, gpus_per_node: int) -> Counts:
    """Copies that cross nodes in normal mode through each rank's NIC, int64[2, W]: sent, received."""
    sent = routing.node_tokens(gpus_per_node).copy()
    size, nodes = sent.shape
    ranks = np.arange(size)
    sent[ranks, ranks // gpus_per_node] = 0
    received = np.zeros(size, dtype=np.int64)
    for node in range(nodes):
        peers = np.minimum(node * gpus_per_node + ranks % gpus_per_node, size - 1)
        np.add.at(received, peers, sent[:, node])
    return np.stack([sent.sum(axis=1), received])


def exchange_bytes(
    deployment: Deployment, routing: Routing, exchange: str
) -> tuple[tuple[int, ...], ...]:
    """Bytes from rank to rank as they cross the wires: `Exchange.bytes` of a dispatch or a combine.

    In normal mode a token that several ranks of another node need crosses to that node once, and its
    relay there passes it on; both hops are counted, at the ranks that carry them.
    """
    if deployment.a2a.collective:
        return _gathered(deployment, routing, exchange)
    matrix = copies(routing, deployment.a2a.mode)
    if deployment.a2a.mode == "normal" and nodes_of(deployment) > 1:
        matrix = _relayed(routing, deployment.machine.fabric.gpus_per_node)
    if exchange == "combine":
        matrix = matrix.T
    payload = payload_bytes(deployment, exchange)
    return tuple(tuple(row) for row in (matrix * payload).tolist())


def _gathered(
    deployment: Deployment, routing: Routing, exchange: str
) -> tuple[tuple[int, ...], ...]:
    """Every rank's tokens to every rank in bf16 (all-gather), or a part for each token back to its rank
    (reduce-scatter): what crosses each port, whichever way round a ring it goes."""
    width, tokens = deployment.model.hidden_size * BF16, routing.tokens
    if exchange == "combine":
        return (tuple(n * width for n in tokens),) * len(tokens)
    return tuple((n * width,) * len(tokens) for n in tokens)


@lru_cache(maxsize=256)
def _relayed(routing: Routing, gpus_per_node: int) -> Counts:
    """Copies between ranks in normal mode, int64[W, W], with those to other nodes sent through relays."""
    matrix = copies(routing, "normal")
    wires = np.zeros_like(matrix)
    to_node = routing.node_tokens(gpus_per_node)
    size, nodes = to_node.shape
    for source in range(size):
        for node in range(nodes):
            members = np.arange(node * gpus_per_node, min((node + 1) * gpus_per_node, size))
            wanted = matrix[source, members]
            if node == source // gpus_per_node:
                wires[source, members] += wanted
                continue
            relay = min(members[0] + source % gpus_per_node, members[-1])
            wires[source, relay] += to_node[source, node]
            kept = wanted.copy()
            kept[relay - members[0]] = 0
            wires[relay, members] += kept
    return wires


def nodes_of(deployment: Deployment) -> int:
    """Nodes that the expert-parallel group spans."""
    return -(-deployment.ep_size // deployment.machine.fabric.gpus_per_node)


def exchange_work(
    deployment: Deployment, routing: Routing, rank: int | None, exchange: str, kind: str
) -> Work:
    """The work of one kernel of an exchange on `rank`; None: of the busiest rank.

    Dims: `tokens` of the rank, `copies` at its busier direction (sent or received), `sent`,
    `received`, `nic_copies` across nodes at the busier direction (normal mode), `payload` bytes of a
    copy, `hidden`, `experts` with their slots, `ep_size`, `nodes`, `num_sms` of the transfer. HBM bytes: sent copies are read,
    received ones written.
    """
    matrix = copies(routing, deployment.a2a.mode)
    sent, received = matrix.sum(axis=1), matrix.sum(axis=0)
    ports = node_ports(routing, deployment.machine.fabric.gpus_per_node).max(axis=0)
    busier = np.maximum(sent, received)
    at = int(busier.argmax()) if rank is None else rank
    out, into = int(sent[at]), int(received[at])
    if exchange == "combine":
        out, into = into, out
    payload = payload_bytes(deployment, exchange)
    nic = int(ports.max() if rank is None else ports[at])
    return work(
        kind,
        read_bytes=out * payload if not kind.endswith("recv") else into * payload,
        write_bytes=into * payload if not kind.endswith("send") else out * payload,
        tokens=routing.tokens[at],
        copies=int(busier[at]),
        sent=out,
        received=into,
        nic_copies=nic if deployment.a2a.mode == "normal" else 0,
        payload=payload,
        hidden=deployment.model.hidden_size,
        experts=routing.num_physical,
        ep_size=deployment.ep_size,
        nodes=nodes_of(deployment),
        combine=int(exchange == "combine"),
        num_sms=deployment.a2a.num_sms,
    )
