"""Every kind has one colour, and colours of neighbours stay apart without hue or for a colour-blind eye."""

from __future__ import annotations

from itertools import combinations

import pytest

from models.work import COMPUTE_KINDS, EXCHANGE_KINDS
from viz.palette import FAMILIES, family, family_name

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
DEFICIENCIES = {
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.3039),
    ),
}
# Families that stand side by side on a stream or lie under each other in time.
BESIDE = ("attention", "gemm", "grouped", "shared", "elementwise", "dispatch", "combine", "flight")


def linear(colour: str) -> tuple[float, ...]:
    parts = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return tuple(p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)


def lab(rgb: tuple[float, ...]) -> tuple[float, float, float]:
    r, g, b = (min(1.0, max(0.0, c)) for c in rgb)
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    f = [c ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in xyz]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def seen(colour: str, deficiency: str) -> tuple[float, float, float]:
    rgb = linear(colour)
    matrix = DEFICIENCIES[deficiency]
    return lab(tuple(sum(m * c for m, c in zip(row, rgb, strict=True)) for row in matrix))


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_neighbours_stay_apart(deficiency: str, theme: str) -> None:
    shades = {name: seen(getattr(family(name), theme), deficiency) for name in BESIDE}
    for one, other in combinations(BESIDE, 2):
        distance = sum((a - b) ** 2 for a, b in zip(shades[one], shades[other], strict=True)) ** 0.5
        assert distance > 10, (one, other, distance)


def test_every_kind_has_a_family() -> None:
    for kind in COMPUTE_KINDS + EXCHANGE_KINDS:
        assert family_name(kind, "L0.x") != "other", kind


@pytest.mark.parametrize(
    ("kind", "op", "lane", "expected"),
    [
        ("gemm", "L3.a.shared.gemm1", "main", "shared"),
        ("silu_mul", "L3.shared.act", "alt", "shared"),
        ("gemm", "L3.q_proj", "main", "gemm"),
        ("dispatch_send", "L3.dispatch", "flight", "flight"),
        ("dispatch_send", "L3.shared.dispatch", "main", "dispatch"),
        ("unheard_of", "x", "main", "other"),
    ],
)
def test_family_name(kind: str, op: str, lane: str, expected: str) -> None:
    assert family_name(kind, op, lane) == expected


def test_unknown_family_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="attention"):
        family("purple")


def test_colours_are_distinct() -> None:
    for theme in ("light", "dark"):
        assert len({getattr(one, theme) for one in FAMILIES}) == len(FAMILIES)
