"""The vote of the data-parallel ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.sglang_rules import load_rules
from models.sglang_tbo import RankVote, can_run_tbo, local_can_run
from schedules.split import split_mode

GROUP = "a2a"
INPUTS = frozenset({"id", "a2a", "deepep_mode", "tbo", "th", "ranks"})


def answer(case: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    rules = load_rules()
    extend = any(rank["mode"] in rules.tbo.extend_modes for rank in case["ranks"])
    auto = "normal" if extend else "low_latency"
    mode = auto if case["deepep_mode"] == "auto" else case["deepep_mode"]
    splits = [_split(rank, case) for rank in case["ranks"]]
    oks = [
        local_can_run(
            rules,
            tbo=case["tbo"],
            mode=rank["mode"],
            split_known=split is not None,
            a2a=case["a2a"],
            low_latency=mode == "low_latency",
        )
        for rank, split in zip(case["ranks"], splits, strict=True)
    ]
    votes = [
        RankVote(ok, rank["mode"], split)
        for ok, rank, split in zip(oks, case["ranks"], splits, strict=True)
    ]
    return {
        "local_ok": oks,
        "local_split": splits,
        "out": [list(pair) for pair in can_run_tbo(rules, votes)],
    }


def _split(rank: Mapping[str, Any], case: Mapping[str, Any]) -> int | None:
    if not case["tbo"]:
        return None
    draft = rank.get("d", 1)
    return split_mode(
        rank["mode"],
        lens=rank.get("lens", ()),
        num_tokens=rank.get("bs", 0) * draft,
        draft_tokens=draft,
        threshold=case["th"],
    ).seq_index
