"""Fused shared slots: layouts, ids, weights, padding, routers, local rows, loader, empty batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from models.experts import (
    Slots,
    append_shared,
    empty_width,
    is_deepep_class,
    is_factor_folded,
    post_process,
    rows_written,
    shared_weight,
    slot_layout,
    slots_from_total,
)
from models.router import grouped_topk

Case = Mapping[str, Any]
GROUP = "kind"
INPUTS = frozenset(
    {
        "id",
        "kind",
        "c",
        "folded",
        "aiter",
        "flag",
        "grouped",
        "bias",
        "scoring",
        "a2a",
        "W",
        "n",
        "P",
    }
    | {"k", "S", "T", "rank", "ids", "weights", "platform", "scale", "non_padded", "fn", "N", "R"}
    | {
        "router_wrote_shared",
        "groups",
        "topk_group",
        "renorm",
        "logits",
        "num_experts",
        "waterfill",
    }
    | {"expert_location_metadata", "global_sized"}
)


def answer(case: Case, document: Case) -> dict[str, Any]:
    return KINDS[case["kind"]](case)


def same(key: str, expected: Any, got: Any) -> bool:
    """Equality; the weights of the routers may differ by 2 units in the last place (sum order)."""
    if key != "out_weights" or expected == got:
        return bool(expected == got)
    a, b = (np.array(rows, dtype=np.float32) for rows in (expected, got))
    return a.shape == b.shape and bool((np.abs(a - b) <= 2 * np.spacing(np.maximum(a, b))).all())


def weight(case: Case) -> dict[str, Any]:
    return {"out": shared_weight(case["c"], case["folded"])}


def folded(case: Case) -> dict[str, Any]:
    out = is_factor_folded(
        layer_flag=case["flag"],
        aiter=case["aiter"],
        grouped=case["grouped"],
        biased=case["bias"],
        scoring=case["scoring"],
    )
    return {"out": out}


def layout(case: Case) -> dict[str, Any]:
    per_rank = slot_layout(case["a2a"]) == "per_rank"
    return {
        "deepep_class": is_deepep_class(case["a2a"]),
        "per_rank": per_rank,
        "has_slots": {str(shared): shared > 0 and per_rank for shared in (0, 1, 2)},
    }


def remap(case: Case) -> dict[str, Any]:
    rows, k = case["T"], case["k"]
    ids = np.array(case["ids"]).reshape(rows, k)
    index = np.arange(rows * k).reshape(rows, k)
    weights = ((index * 37 % 101 + 1) / 128).astype(np.float32)
    slots = Slots("per_rank", case["W"], case["n"], case["S"])
    gate = shared_weight(case["c"], case["folded"])
    torch_ids, gates = append_shared(ids, weights, slots, case["rank"], gate, keep_invalid=False)
    kernel_ids, _ = append_shared(ids, weights, slots, case["rank"], gate)
    padded, _ = append_shared(ids[-1:] * 0, weights[-1:], slots, case["rank"], gate)
    return {
        "out_ids": torch_ids.tolist(),
        "out_weights": gates.tolist(),
        "rocm_kernel_same": bool((torch_ids == kernel_ids).all()),
        "rocm_ids": kernel_ids.tolist(),
        "rocm_weights": gates.tolist(),
        "rocm_pad": {
            "non_padded": rows - 1,
            "ids_last": padded[0].tolist(),
            "weights_last": gates[-1].tolist(),
        },
    }


def post(case: Case) -> dict[str, Any]:
    out = post_process(
        np.array(case["ids"]),
        np.array(case["weights"], dtype=np.float32),
        Slots(slot_layout(case["a2a"]), case["W"], case["n"], case["S"]),
        case["rank"],
        shared_gate=shared_weight(case["c"], case["folded"]),
        scale=case["scale"],
        non_padded=case["non_padded"],
        platform=case["platform"],
    )
    return {
        "out_ids": out.ids.tolist(),
        "out_weights": out.weights.tolist(),
        "recorder_ids": out.recorded.tolist(),
    }


def router(case: Case) -> dict[str, Any]:
    bias = case.get("bias") if case["fn"].startswith("biased") else None
    ids, weights = grouped_topk(
        np.array(case["logits"], dtype=np.float32),
        case["k"],
        n_group=case["groups"],
        topk_group=case["topk_group"],
        renormalise=case["renorm"],
        factor=case["c"],
        folded=case["folded"],
        bias=None if bias is None else np.array(bias, dtype=np.float32),
        shared=case["S"],
    )
    return {"out_ids": ids.tolist(), "out_weights": weights.tolist()}


def fused_moe(case: Case) -> dict[str, Any]:
    where = slot_layout(case["a2a"])
    slots = slots_from_total(where, case["W"], case["num_experts"], case["S"])
    ids = np.arange(slots.routed + slots.shared + 1)
    rows = slots.local_rows(case["rank"], ids).tolist()
    return {
        "global_routed": slots.routed,
        "local_routed": slots.per_rank,
        "local_experts": slots.rows_per_rank,
        "rows": rows,
        "standard_dispatch_rows": [-1, *rows[:-1]],
    }


def loader(case: Case) -> dict[str, Any]:
    n = (case["N"] + case["R"]) // case["W"]
    slots = Slots(slot_layout(case["a2a"]), case["W"], n, case["S"])
    written = {
        name: rows_written(
            slots,
            case["rank"],
            int(name),
            num_logical=case["N"],
            with_locations=case["expert_location_metadata"],
            global_sized=case["global_sized"],
        )
        for name in case["written"]
    }
    return {"written": written}


def empty(case: Case) -> dict[str, Any]:
    width = empty_width(case["k"], case["S"], slot_layout(case["a2a"]), case["waterfill"])
    return {"out": {"ids": [0, width], "weights": [0, width]}}


KINDS: dict[str, Callable[[Case], dict[str, Any]]] = {
    "weight": weight,
    "folded": folded,
    "layout": layout,
    "remap": remap,
    "post": post,
    "router": router,
    "fused_moe": fused_moe,
    "loader": loader,
    "empty": empty,
}
