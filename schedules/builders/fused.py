"""Rows with a fused shared expert: `baseline+fused`, `tbo+fused+waterfill`, ...

The part before the first plus is a schedule of its own; `+fused` is SGLang's
`--enforce-shared-experts-fusion`, and `+waterfill` its `--enable-waterfill`. Fusion changes kernels,
layout and destinations, never the order of the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from models.deployment import Fusion
from models.fusion_deployment import decide_for, forced_fusion
from models.sglang_rules import Refusal
from schedules.builders.request import Request

SUFFIXES = ("+fused", "+fused+waterfill")


@dataclass(frozen=True)
class Prepared:
    """A request for the schedule before the plus, with its fusion applied, and why SGLang does not
    fuse there. When it is refused, the fusion is what was asked for."""

    request: Request
    refusal: Refusal | None


def fused_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Every name with every suffix."""
    return tuple(name + suffix for name in names for suffix in SUFFIXES)


def prepare(request: Request) -> Prepared:
    """The request without its suffix; ValueError for a suffix that is none."""
    base, plus, rest = request.name.partition("+")
    if not plus:
        return Prepared(request, None)
    if plus + rest not in SUFFIXES:
        raise ValueError(
            f"unknown suffix {plus + rest!r} of {base!r}; known: {', '.join(SUFFIXES)}"
        )
    waterfill = rest.endswith("waterfill")
    decision = decide_for(
        request.deployment,
        request.rules.version,
        enforce=True,
        waterfill=waterfill,
        sbo=base.startswith("sbo"),
        tbo=base == "tbo",
    )
    refused = decision.refusal
    fusion: Fusion = forced_fusion(request.deployment, waterfill) if refused else decision.fusion
    deployment = replace(request.deployment, fusion=fusion)
    return Prepared(replace(request, name=base, deployment=deployment), refused)
