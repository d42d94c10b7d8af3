"""Waterfill: widened ids and weights of the balancer and of its selection kernel."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from models.waterfill import Plan, choose_ranks, dynamic_plan, expand, routed_load, static_plan

GROUP = "mode"
INPUTS = frozenset(
    {"id", "mode", "W", "n", "k", "T", "rank", "dist", "inv", "sw", "ids", "others_routed"}
    | {"tokens_per_rank", "load", "allow_all", "target"}
)


def answer(case: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    n, k, rows = case["n"], case["k"], case["T"]
    ids = np.array(case["ids"], dtype=np.int32).reshape(rows, k)
    index = np.arange(rows * k).reshape(rows, k)
    weights = ((index * 37 % 101 + 1) / 128).astype(np.float32)
    counts = routed_load(ids, n, case["W"])
    plan = _plan(case, ids, counts)
    ranks = choose_ranks(ids, n, case["rank"], plan)
    wide, gates = expand(ids, weights, ranks, n, case["sw"])
    return {
        "counts": counts.tolist(),
        "plan": plan and {key: _plain(value) for key, value in asdict(plan).items()},
        "out_shared_id": wide[:, -1].tolist(),
        "out_ids": wide.tolist(),
        "out_weights": gates.tolist(),
        "out_ids_sha": _sha(wide.astype("<i8")),
        "out_weights_sha": _sha(gates.astype("<f4")),
    }


def _plan(case: Mapping[str, Any], ids: Any, counts: Any) -> Plan | None:
    if case["mode"] == "static":
        return static_plan(ids, case["n"], case["W"])
    if case["mode"] == "dynamic":
        routed = (np.array(case["others_routed"]) + counts).tolist()
        return dynamic_plan(len(ids), routed, case["tokens_per_rank"], case["k"])
    return Plan(tuple(case["load"]), case["target"], case["allow_all"])


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _sha(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:32]
