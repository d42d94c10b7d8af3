"""Draws whole-program cases that nobody has seen: sizes, SMs, KV lengths and skews from a seed.

    python -m benchmarks.validation_draw --seed 44 --one 44 -o benchmarks/validation_unseen.yaml

Each size comes from a stratum, so that small, middle and large batches and few, middle and many exchange
SMs all occur; no batch or half of it is on the calibration's grid or among the older cases.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.validation_cases import CASES, LAYERS, groups
from executor.calibrate.plan import DECODE_TOKENS, PREFILL_TOKENS

# Tokens a rank, and exchange SMs (even, as DeepEP wants them), of each stratum.
PREFILL = ((1024, 2560), (2560, 5632), (5632, 10240))
SMS = (range(8, 14, 2), range(14, 24, 2), range(24, 34, 2))
SEQUENCES = range(384, 2560, 64)
DECODE = ((6, 28), (28, 72), (72, 127))
DECODE_ONE = ((10, 40), (40, 80), (80, 127))
KV = range(768, 6145, 128)
PAIRED = ((0, 2), (1, 0), (0, 1), (2, 0), (1, 1), (2, 2))
FOUR = "[sequential, baseline, tbo, tbo@0]"
THREE = "[sequential, tbo, tbo@0]"
GRAPH = "[sequential, baseline, sbo.v3, tbo]"
ONE_RANK = ", ranks: 1"


class Draw:
    """A seeded draw that never gives the same batch twice, nor one of which it or half of it is `taken`."""

    def __init__(self, seed: int, taken: Iterable[int]) -> None:
        self.random = random.Random(seed)
        self.taken = set(taken)

    def prompts(self, bounds: tuple[int, int]) -> tuple[int, int]:
        """(prompts, tokens of each): at least two prompts, together within the bounds."""
        while True:
            sequence = self.random.choice(SEQUENCES)
            count = self.random.randrange(2, 17)
            if bounds[0] <= count * sequence < bounds[1] and self._free(count * sequence):
                return count, sequence

    def batch(self, bounds: tuple[int, int]) -> int:
        """An even number of sequences within the bounds."""
        while True:
            tokens = self.random.randrange(bounds[0], bounds[1], 2)
            if self._free(tokens):
                return tokens

    def _free(self, tokens: int) -> bool:
        if {tokens, tokens // 2} & self.taken:
            return False
        self.taken.add(tokens)
        return True


def lines(seed: int, one: int) -> Iterator[str]:
    """The YAML file: groups of two ranks by `seed`, those of one rank by the seed `one`."""
    yield f"# Drawn by `python -m benchmarks.validation_draw --seed {seed} --one {one}`; not to be edited."
    yield "# Predicted (`benchmarks/data/validation_predicted.jsonl`) before any of them was measured."
    yield f"seed: {seed}"
    yield f"layers: {LAYERS}"
    yield "groups:"
    yield from (line for line in _drawn(seed) if ONE_RANK not in line)
    yield from (line for line in _drawn(one) if ONE_RANK in line)


def batches_of(file: Path) -> set[int]:
    """Tokens of the first rank in each of a file's groups."""
    return {group.batch.tokens[0] for group in groups(file)}


def _drawn(seed: int) -> Iterator[str]:
    draw = Draw(seed, {*PREFILL_TOKENS, *DECODE_TOKENS, *batches_of(CASES)})
    for index, (size, sms) in enumerate(PAIRED):
        yield _prefill(draw, size, sms, (FOUR, THREE)[index % 2])
    yield _prefill(draw, 1, 1, "[sequential, tbo]", skewed=True)
    for bounds in DECODE:
        yield _decode(draw, bounds, GRAPH)
    yield _decode(draw, DECODE[1], "[sequential, baseline, tbo]", eager=True)
    yield _decode(draw, DECODE[2], "[sequential, tbo]", skewed=True)
    for bounds in DECODE_ONE:
        yield _decode(draw, bounds, GRAPH, ranks=1)
    yield _decode(draw, DECODE_ONE[1], GRAPH, ranks=1, eager=True)


def _prefill(draw: Draw, size: int, sms: int, schedules: str, *, skewed: bool = False) -> str:
    count, sequence = draw.prompts(PREFILL[size])
    held = draw.random.choice(SMS[sms])
    name, more = _marks(draw, f"prefill {count} x {sequence} tokens {held} SMs", skewed, False)
    return (
        f"  - {{name: {name}, phase: prefill, tokens: {count * sequence}, sequence: {sequence}, "
        f"num_sms: {held}{more}, schedules: {schedules}}}"
    )


def _decode(
    draw: Draw,
    bounds: tuple[int, int],
    schedules: str,
    *,
    ranks: int = 2,
    eager: bool = False,
    skewed: bool = False,
) -> str:
    tokens, kv = draw.batch(bounds), draw.random.choice(KV)
    one = f"EP{ranks} " if ranks == 1 else ""
    name, more = _marks(draw, f"{one}decode {tokens} tokens {kv} KV", skewed, eager)
    more += ONE_RANK if ranks == 1 else ""
    return (
        f"  - {{name: {name}, phase: decode, tokens: {tokens}, kv: {kv}{more}, "
        f"schedules: {schedules}}}"
    )


def _marks(draw: Draw, name: str, skewed: bool, eager: bool) -> tuple[str, str]:
    more = ""
    if skewed:
        more += f", alpha: {draw.random.randrange(3, 9) / 10}"
        name += " skewed"
    if eager:
        more += ", launch: eager"
        name += " eager"
    return name, more


def main() -> None:
    """Parse, draw, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=30)
    parser.add_argument("--one", type=int, default=8, help="seed of the cases on one GPU")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    text = "\n".join(lines(arguments.seed, arguments.one)) + "\n"
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
