"""Cuts of a batch in two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.sglang_rules import Refused
from schedules.split import (
    child_lens,
    child_prefixes,
    non_padded,
    split_graph_replay,
    split_mode,
)

GROUP = "mode"
INPUTS = frozenset(
    {"id", "mode", "lens", "th", "bs", "d", "num_tokens", "forward_mode", "is_extend"}
    | {"num_token_non_padded"}
)
OTHER_INPUT = "token_index"  # an input in the group non_padded, an answer elsewhere


def answer(case: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    mode = case["mode"]
    if mode == "extend":
        return _extend(case)
    if mode == "mixed":
        cut = split_mode("MIXED", lens=case["lens"], threshold=case["th"])
        return {"seq_index": cut.seq_index, "token_index": cut.token_index}
    if mode in ("decode", "target_verify"):
        return _decode(case)
    if mode == "idle":
        cut = split_mode("IDLE", num_tokens=case["num_tokens"])
        return {"seq_index": cut.seq_index, "token_index": cut.token_index}
    if mode == "non_padded":
        out = non_padded(case["token_index"], case["num_token_non_padded"])
        return {"out": list(out), OTHER_INPUT: case[OTHER_INPUT]}
    if mode == "idle_graph_replay":
        return {"error": _error(lambda: split_graph_replay("IDLE", case["num_tokens"]))}
    return {"seq_index": _error(lambda: split_mode(case["forward_mode"], lens=[1, 1]))}


def same(key: str, expected: object, got: object) -> bool:
    """An exception of the package is a refusal here: compared as raised or not."""
    return expected == got or (got == "raised" and isinstance(expected, str))


def _error(call: Any) -> str | None:
    try:
        call()
    except (Refused, ValueError):
        return "raised"
    return None


def _extend(case: Mapping[str, Any]) -> dict[str, Any]:
    lens = case["lens"]
    cut = split_mode("EXTEND", lens=lens, threshold=case["th"])
    lens_a, lens_b = child_lens(lens, cut)
    prefix = [10 * (i + 1) for i in range(len(lens))]
    _, prefix_b = child_prefixes(prefix, cut)
    return {
        "seq_index": cut.seq_index,
        "two_chunk": cut.two_chunk,
        "token_index": cut.token_index,
        "balanced_index": cut.balanced_index,
        "lens_a": list(lens_a),
        "lens_b": list(lens_b),
        "prefix_add_b0": prefix_b[0] - prefix[cut.seq_index] if prefix_b else 0,
    }


def _decode(case: Mapping[str, Any]) -> dict[str, Any]:
    mode = case["mode"].upper()
    cut = split_mode(mode, num_tokens=case["num_tokens"], draft_tokens=case["d"])
    replay = split_graph_replay(mode, case["num_tokens"], case["d"])
    return {
        "seq_index": cut.seq_index,
        "token_index": cut.token_index,
        "graph_replay": [replay.seq_index, replay.token_index],
    }
