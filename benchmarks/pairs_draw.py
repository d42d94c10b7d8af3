"""Which pairs of loops are measured: the first ones, chosen by hand, and later ones, drawn by a seed.

    python -m benchmarks.pairs_draw --seed 44

Sizes and SMs of exchanges are off the calibration's grid, and drawn pairs are none that were seen before.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence

from benchmarks.pairs_plan import DOWN, GATE_UP, O_PROJ, Q_B, Compute, Pair
from executor.calibrate.plan import LADDER_SMS, LADDER_TOKENS, PREFILL_TOKENS, SPLITS

OFFSETS = (0.0, 0.25, 0.5)
# The seed that stands for the pairs chosen by hand.
FIRST = 0
Exchanged = tuple[str, int, int]
Plan = Sequence[tuple[Compute, Exchanged, Exchanged]]

BY_HAND: Plan = (
    (Compute("dense", O_PROJ, 2560), ("dispatch", 12, 2048), ("combine", 20, 5120)),
    (Compute("dense", Q_B, 4096), ("dispatch", 20, 5120), ("combine", 12, 2048)),
    (Compute("grouped", GATE_UP, 512), ("dispatch", 20, 2048), ("combine", 12, 5120)),
    (Compute("grouped", DOWN, 1280), ("dispatch", 12, 5120), ("combine", 20, 2048)),
    (Compute("weights", GATE_UP, 12), ("dispatch", 12, 2048), ("combine", 20, 5120)),
    (Compute("weights", DOWN, 20), ("dispatch", 20, 5120), ("combine", 12, 2048)),
    (Compute("attention", "attn", 2048, 2), ("dispatch", 12, 5120), ("combine", 20, 2048)),
    (Compute("attention", "attn", 1280, 4), ("dispatch", 20, 2048), ("combine", 12, 5120)),
    (Compute("elementwise", "act", 81920), ("dispatch", 12, 2048), ("combine", 20, 5120)),
    (Compute("elementwise", "norm1", 10240), ("dispatch", 20, 5120), ("combine", 12, 2048)),
)
BY_HAND_UNCAPPED: Plan = (
    (Compute("dense", O_PROJ, 2560), ("dispatch", 20, 2048), ("combine", 12, 2048)),
    (Compute("grouped", GATE_UP, 320), ("dispatch", 12, 2048), ("combine", 20, 2048)),
    (Compute("attention", "attn", 2048, 2), ("dispatch", 20, 2048), ("combine", 12, 2048)),
)

# Sizes that are drawn: rows; rows for each expert; tokens of one prompt.
SIZES = {
    "dense": range(1024, 6144, 64),
    "grouped": range(192, 1281, 64),
    "weights": range(4, 33),
    "attention": range(640, 2560, 128),
    "elementwise": range(4096, 12289, 256),
}
KERNELS = {
    "dense": (O_PROJ, Q_B),
    "grouped": (GATE_UP, DOWN),
    "weights": (GATE_UP, DOWN),
    "attention": ("attn", "attn"),
    "elementwise": ("act", "norm1"),
}
PROMPTS = range(1, 5)
# Rows of the activation are those of all experts.
ACT_ROWS = 8
TOKENS, FEW_TOKENS = range(1024, 8193, 64), range(1024, 3073, 64)
EXCHANGE_SMS = range(10, 33, 2)
UNCAPPED_FAMILIES = ("dense", "grouped", "attention")


def pairs(seed: int = FIRST) -> Iterator[Pair]:
    """All pairs of a seed, the capped ones first."""
    capped, uncapped = (BY_HAND, BY_HAND_UNCAPPED) if seed == FIRST else drawn(random.Random(seed))
    for compute, *exchanges in capped:
        for exchange, num_sms, tokens in exchanges:
            yield Pair(compute, exchange, num_sms, tokens)
    for compute, *exchanges in uncapped:
        for exchange, num_sms, tokens in exchanges:
            for offset in OFFSETS:
                yield Pair(compute, exchange, num_sms, tokens, capped=False, offset=offset)


def drawn(source: random.Random) -> tuple[Plan, Plan]:
    """Capped pairs, two kernels of each class, and uncapped ones, one of each of three classes."""
    capped = [
        (_compute(source, family, kernel), *_exchanges(source, TOKENS))
        for family, kernels in KERNELS.items()
        for kernel in kernels
    ]
    uncapped = [
        (_compute(source, family, source.choice(KERNELS[family])), *_exchanges(source, FEW_TOKENS))
        for family in UNCAPPED_FAMILIES
    ]
    return capped, uncapped


def _compute(source: random.Random, family: str, kernel: str) -> Compute:
    size = source.choice(SIZES[family])
    if family == "attention":
        return Compute(family, kernel, size, source.choice(PROMPTS))
    return Compute(family, kernel, size * (ACT_ROWS if kernel == "act" else 1))


def _exchanges(source: random.Random, tokens: range) -> tuple[Exchanged, Exchanged]:
    first, second = (
        (exchange, _off_grid(source, EXCHANGE_SMS, _SMS), _off_grid(source, tokens, _TOKENS))
        for exchange in ("dispatch", "combine")
    )
    return first, second


_SMS = {sms for sms, _ in SPLITS} | set(LADDER_SMS)
_TOKENS = {*PREFILL_TOKENS, LADDER_TOKENS}


def _off_grid(source: random.Random, values: range, grid: set[int]) -> int:
    """Drawn again where the grid is hit, so that another grid changes few pairs."""
    while True:
        value = source.choice(values)
        if value not in grid:
            return value


def main() -> None:
    """Print the pairs of a seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=44)
    for pair in pairs(parser.parse_args().seed):
        print(pair.name)


if __name__ == "__main__":
    main()
