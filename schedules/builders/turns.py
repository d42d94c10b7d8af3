"""Whose turn it is: the order in which two children issue their stages."""

from __future__ import annotations

CHILDREN = ("a", "b")


def issue_order(num_stages: int, delta: int) -> tuple[tuple[str, int], ...]:
    """(child, stage) in host order when both children have `num_stages` stages and child A starts
    `delta` stages ahead: A alone first, then A and B in turn, then B alone.

    ValueError unless `0 <= delta <= num_stages`.
    """
    if not 0 <= delta <= num_stages:
        raise ValueError(f"delta {delta}: must lie in 0 to the number of stages, {num_stages}")
    ahead = [("a", stage) for stage in range(delta)]
    turns = [
        turn for stage in range(delta, num_stages) for turn in (("a", stage), ("b", stage - delta))
    ]
    behind = [("b", stage) for stage in range(num_stages - delta, num_stages)]
    return tuple(ahead + turns + behind)
