"""How much less a larger exchange slows beside other kernels, from slowdowns that a calibration measured.

Of the law of interference the part that goes with the SMs of its neighbours (memory latency) falls with
the exchange's size, the part that goes with their HBM rate does not. On two H200s, exchanges of 1536, 3072
and 6144 tokens, that left less error than both parts falling, or neither; what is left is a profile's
`interference.errors`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from models.calibration_records import Slowed
from models.machine import SizeLaw

LEAST_SIZES = 3
# Powers of the size that are tried.
POWERS = tuple(-step / 20 for step in range(31))


def size_law(
    slowed: Iterable[Slowed], error: Callable[[Iterable[Slowed]], float]
) -> SizeLaw | None:
    """The power of the tokens that leaves the least `error` of one direction's slowdowns that were not held
    out; None where too few sizes were measured."""
    sized = [entry for entry in slowed if entry.tokens]
    count = Counter(entry.tokens for entry in sized)
    known = [entry for entry in sized if not entry.held]
    if len(count) < LEAST_SIZES:
        return None
    ((most, _),) = count.most_common(1)
    laws = (SizeLaw(most, power, min(count), max(count)) for power in POWERS)
    return min(laws, key=lambda law: error([of_one_size(entry, law) for entry in known]))


def of_one_size(entry: Slowed, law: SizeLaw | None) -> Slowed:
    """The slowdown as one of an exchange of the law's own size: c0 counts the SMs of neighbours, so that
    these are made more or fewer."""
    if law is None or not entry.tokens:
        return entry
    near = entry.beside
    return replace(entry, beside=replace(near, busy=near.busy * law.factor(entry.tokens)))
