"""Where physical experts live: the trivial placement and EPLB, both with redundant experts.

Physical expert `p` lives on rank `p // (P / W)`. A logical expert has one replica or more, and
each source rank always sends its tokens to the same one.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from models.topk_draw import Floats

Placement = npt.NDArray[np.int32]


def trivial_placement(num_experts: int, redundant: int) -> Placement:
    """Logical id of each physical slot, int32[N + R]: in order, then again from 0."""
    return (np.arange(num_experts + redundant) % num_experts).astype(np.int32)


def eplb_placement(popularity: Floats, redundant: int, ep_size: int) -> Placement:
    """Logical id of each physical slot, int32[N + R], balanced for the given popularity.

    Each redundant slot in turn goes to the expert whose replicas are the most loaded; the replicas
    are then packed, heaviest first, on the least loaded rank that has room and, where possible, no
    replica of the same expert. (The global policy of DeepSeek's EPLB, without its node hierarchy.)
    """
    counts = _replica_counts(popularity, redundant)
    logical = np.repeat(np.arange(len(popularity)), counts)
    load = (popularity / counts)[logical]
    order = np.argsort(-load, kind="stable")
    ranks = _packed([(int(logical[slot]), float(load[slot])) for slot in order], ep_size)
    return np.array([expert for experts in ranks for expert in sorted(experts)], dtype=np.int32)


def _packed(replicas: list[tuple[int, float]], ep_size: int) -> list[list[int]]:
    """Experts of each rank: every replica in turn goes to the least loaded rank that has room, past
    those that hold the expert already as long as another has room."""
    per_rank = len(replicas) // ep_size
    ranks: list[list[int]] = [[] for _ in range(ep_size)]
    heap = [(0.0, rank) for rank in range(ep_size)]
    for expert, load in replicas:
        skipped = []
        while len(heap) > 1 and expert in ranks[heap[0][1]]:
            skipped.append(heapq.heappop(heap))
        if skipped and expert in ranks[heap[0][1]]:
            heapq.heappush(heap, skipped.pop(0))
        total, rank = heapq.heappop(heap)
        ranks[rank].append(expert)
        if len(ranks[rank]) < per_rank:
            heapq.heappush(heap, (total + load, rank))
        for entry in skipped:
            heapq.heappush(heap, entry)
    return ranks


def _replica_counts(popularity: Floats, redundant: int) -> npt.NDArray[np.int64]:
    counts = np.ones(len(popularity), dtype=np.int64)
    heap = [(-load, expert) for expert, load in enumerate(popularity.tolist())]
    heapq.heapify(heap)
    for _ in range(redundant):
        _, expert = heapq.heappop(heap)
        counts[expert] += 1
        heapq.heappush(heap, (-float(popularity[expert]) / int(counts[expert]), expert))
    return counts


def replica_table(placement: Placement, num_experts: int, ep_size: int) -> npt.NDArray[np.int32]:
    """Physical id that a source rank uses for a logical expert, int32[W, N].

    A replica on the source's own rank comes first; otherwise the sources take the replicas in turn,
    so that equal senders load them equally. (SGLang's static dispatch, without its node preference.)
    """
    per_rank = len(placement) // ep_size
    table = np.empty((ep_size, num_experts), dtype=np.int32)
    sources = np.arange(ep_size)
    order = np.argsort(placement, kind="stable")
    bounds = np.searchsorted(placement[order], np.arange(num_experts + 1))
    for expert in range(num_experts):
        replicas = order[bounds[expert] : bounds[expert + 1]]
        table[:, expert] = replicas[sources % len(replicas)]
        table[replicas // per_rank, expert] = replicas
    return table
