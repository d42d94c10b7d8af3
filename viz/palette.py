"""One fixed colour per family of operations, in every picture and on the terminal.

The hues are those of Okabe and Ito (Color Universal Design, 2008), which stay apart for the common
kinds of colour blindness; communication is warm, computation is cool, the rest is grey. Child b of a
split batch is a lighter shade of its family and is also hatched, so it is told apart without hue.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """A family of operations: `light` and `dark` are its fill on a light and on a dark page."""

    name: str
    title: str
    light: str
    dark: str


FAMILIES: tuple[Family, ...] = (
    Family("attention", "attention", "#0072B2", "#3D9BD6"),
    Family("gemm", "dense GEMM", "#56B4E9", "#7CC7F0"),
    Family("grouped", "grouped GEMM", "#009E73", "#1DB98C"),
    Family("shared", "shared expert", "#E3CF2F", "#F0E442"),
    Family("elementwise", "elementwise", "#80868D", "#A2A9B1"),
    Family("dispatch", "dispatch", "#E69F00", "#F2AF2E"),
    Family("combine", "combine", "#D55E00", "#E8793A"),
    Family("notify", "layout, notify", "#CC79A7", "#D990B8"),
    Family("flight", "flight", "#C3B9DE", "#6C6096"),
    Family("collective", "collective", "#8C5A2B", "#B07B48"),
    Family("other", "other", "#C9C3B8", "#6B675F"),
)

_FAMILY_OF_KIND = {
    "attention_decode": "attention",
    "attention_prefill": "attention",
    "rope": "elementwise",
    "kv_write": "elementwise",
    "gemm": "gemm",
    "bmm": "gemm",
    "head": "gemm",
    "grouped_gemm_masked": "grouped",
    "grouped_gemm_contiguous": "grouped",
    "dispatch": "dispatch",
    "dispatch_send": "dispatch",
    "dispatch_recv": "dispatch",
    "combine": "combine",
    "combine_send": "combine",
    "combine_recv": "combine",
    "layout": "notify",
    "notify": "notify",
    "flight": "flight",
    "collective": "collective",
    "embedding": "elementwise",
    "norm": "elementwise",
    "gate": "elementwise",
    "topk": "elementwise",
    "quantise": "elementwise",
    "permute": "elementwise",
    "silu_mul": "elementwise",
    "unpermute": "elementwise",
    "add": "elementwise",
}

CAUSE_COLOURS = {
    "queued": "#9AA0A6",
    "dependency": "#0072B2",
    "sm_wait": "#D55E00",
    "link_wait": "#CC79A7",
    "peer_wait": "#E69F00",
    "host": "#009E73",
    "drained": "#56B4E9",
    "unexplained": "#C3B9DE",
}


def family_name(kind: str, op: str, lane: str = "") -> str:
    """The family of a span: its work kind decides, except that a flight is a flight whatever it
    carries and an op of the shared expert (`L3.shared.gemm1`) is drawn as the shared expert."""
    if lane == "flight":
        return "flight"
    if ".shared" in f".{op}" and _FAMILY_OF_KIND.get(kind) in ("gemm", "elementwise", None):
        return "shared"
    return _FAMILY_OF_KIND.get(kind, "other")


def family(name: str) -> Family:
    """The family called `name`; KeyError names the known ones."""
    for one in FAMILIES:
        if one.name == name:
            return one
    raise KeyError(f"unknown family {name!r}; known: {', '.join(f.name for f in FAMILIES)}")
