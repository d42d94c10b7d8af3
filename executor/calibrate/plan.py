"""What a calibration measures, in the order of what predictions need most.

Every token count here is on the calibration grid; validation cases stay off it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

TaskKind = Literal["gaps", "layers", "ladder", "pairs", "hold", "polls"]

# SMs of the exchange and the cap of the GEMMs beside it, as a serving engine sets both; 0: no cap.
SPLITS = ((8, 0), (8, 124), (16, 116), (24, 108), (32, 100))
# Large layers once more without a cap where exchanges are shorter: how much they rest decides their clock
# at the power limit (models.power_law).
WARM_SMS, WARM_TOKENS = (16, 32), (6144, 12288)
QUICK_SPLITS = ((8, 0), (8, 124), (24, 108))
PREFILL_TOKENS = (768, 1536, 3072, 6144, 12288)
QUICK_PREFILL_TOKENS = (1536, 6144)
DECODE_TOKENS = (8, 24, 48, 96, 120)
QUICK_DECODE_TOKENS = (24, 96)
DECODE_CAPS = (0, 116, 108)
KV_TOKENS = (1024, 4096)
FEW_SMS = (66, 24, 12)
LADDER_SMS = (8, 16, 24, 32)
QUICK_LADDER_SMS = (24,)
LADDER_TOKENS, LADDER_TOKENS_LOW = 3072, 96
# Sizes of the compute kernels that run beside exchanges, some hundred us each: rows of a dense GEMM,
# rows for each expert of a grouped one, and of two that are bound by their weights, more or less.
DENSE_ROWS = 2048
GROUPED_ROWS = 256
WEIGHT_ROWS = 16
THIN_ROWS = 64
WEIGHT_ROWS_ALLOCATED = 64
NEIGHBOURS = ("dense", "grouped", "thin", "weights", "attention", "elementwise", "norm")
QUICK_NEIGHBOURS = ("dense", "grouped", "weights", "elementwise")
# Exchanges of other sizes too, since how much they slow depends on it.
LADDER_SIZES, SIZED_SMS = (1536, 6144), (8, 24)
SIZED_NEIGHBOURS = ("dense", "grouped", "weights", "attention")
LOW_LATENCY_NEIGHBOURS = ("dense", "weights")
# SMs that each low-latency exchange of the ladder's tokens holds with 64 experts.
LOW_LATENCY_SMS = {"dispatch_ll": 64, "combine_ll": 96}
# Kernels whose way of sharing out their tiles is told by holding SMs beside them.
HELD_KERNELS = ("dense", "grouped", "weights", "attention")


@dataclass(frozen=True, slots=True)
class Task:
    """One step of a calibration. `name` is its identity in the file of records."""

    kind: TaskKind
    params: tuple[tuple[str, int | str], ...] = ()

    @property
    def name(self) -> str:
        """Kind and parameters as text."""
        return " ".join((self.kind, *(f"{key}={value}" for key, value in self.params)))

    def number(self, key: str) -> int:
        """A parameter that is a number."""
        return int(dict(self.params)[key])

    def text(self, key: str) -> str:
        """A parameter that is a word."""
        return str(dict(self.params)[key])


def task(kind: TaskKind, **params: int | str) -> Task:
    """A task from keywords."""
    return Task(kind, tuple(params.items()))


def plan(*, quick: bool = False, ranks: int = 2) -> tuple[Task, ...]:
    """All tasks: gaps, layers in sequence, the ladder and pairs, held SMs, then kernels on few SMs. One
    rank has low-latency exchanges only."""
    tasks = [task("gaps")]
    normal = ranks > 1
    if normal:
        tasks += _prefill(quick)
    tasks += [*_decode(quick), *_ladder(quick, normal=normal), *_pairs(quick, normal=normal)]
    tasks += [task("hold", compute=name) for name in HELD_KERNELS]
    if normal and not quick:
        tasks += [
            task("layers", phase="prefill", tokens=1536, num_sms=8, cap=cap) for cap in FEW_SMS
        ]
    return tuple(tasks)


def _prefill(quick: bool) -> Iterator[Task]:
    """Layers in sequence: times alone at the power that a schedule draws."""
    for num_sms, cap in QUICK_SPLITS if quick else SPLITS:
        for tokens in QUICK_PREFILL_TOKENS if quick else PREFILL_TOKENS:
            yield task("layers", phase="prefill", tokens=tokens, num_sms=num_sms, cap=cap)
    for num_sms, tokens in () if quick else product(WARM_SMS, WARM_TOKENS):
        yield task("layers", phase="prefill", tokens=tokens, num_sms=num_sms, cap=0)


def _decode(quick: bool) -> Iterator[Task]:
    for cap in DECODE_CAPS[: 1 if quick else 3]:
        for kv in KV_TOKENS[-1:] if quick or cap else KV_TOKENS:
            for tokens in QUICK_DECODE_TOKENS if quick else DECODE_TOKENS:
                yield task("layers", phase="decode", tokens=tokens, kv=kv, cap=cap)


def _ladder(quick: bool, *, normal: bool) -> Iterator[Task]:
    """Exchanges beside a streaming kernel at rising HBM rates, on disjoint SMs."""
    for exchange in ("dispatch", "combine") if normal else ():
        for sms in QUICK_LADDER_SMS if quick else LADDER_SMS:
            yield task("ladder", exchange=exchange, num_sms=sms, tokens=LADDER_TOKENS)
    for exchange in () if quick else LOW_LATENCY_SMS:
        yield task("ladder", exchange=exchange, num_sms=0, tokens=LADDER_TOKENS_LOW)


def _pairs(quick: bool, *, normal: bool) -> Iterator[Task]:
    """Capped compute kernels beside exchanges, both ways."""
    for exchange in ("dispatch", "combine") if normal else ():
        for sms in QUICK_LADDER_SMS if quick else LADDER_SMS:
            for compute in QUICK_NEIGHBOURS if quick else NEIGHBOURS:
                yield task(
                    "pairs", exchange=exchange, num_sms=sms, compute=compute, tokens=LADDER_TOKENS
                )
    if normal and not quick:
        yield from _sized_pairs()
    for exchange, sms in () if quick else LOW_LATENCY_SMS.items():
        for compute in LOW_LATENCY_NEIGHBOURS:
            yield task(
                "pairs", exchange=exchange, num_sms=sms, compute=compute, tokens=LADDER_TOKENS_LOW
            )


def _sized_pairs() -> Iterator[Task]:
    for exchange, tokens in product(("dispatch", "combine"), LADDER_SIZES):
        for sms, compute in product(SIZED_SMS, SIZED_NEIGHBOURS):
            yield task("pairs", exchange=exchange, num_sms=sms, compute=compute, tokens=tokens)
