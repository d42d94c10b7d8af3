"""Pairs of loops: what one is, its programs, and what is read off them. Which: `benchmarks.pairs_draw`.

One stream repeats a compute kernel, another an exchange, until both have made their calls. The counts
come from predicted times, so that the prediction and all ranks make the same calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean, median

from models.attention_counts import plain_attention
from models.counts import BF16, activation_bytes, elementwise, gemm, grouped_gemm
from models.deployment import Deployment
from models.machine import Machine
from models.sequences import SequenceSums
from models.spin import spin
from models.work import Grid, Work, work
from scenarios import load
from scenarios.resolve import Resolved, resolve
from schedules.builders import build
from schedules.program import Exchange, Launch, Op, Program, RankClass, Record, Step, Stream, Wait

SCENARIO = "deepseek-v3-h200-ep2-prefill"
RANKS = 2
GATE_NS = 40_000_000
# Length of both loops alone, and bounds of their calls; uncapped loops wait for each other, call by call.
TOTAL_NS = 12e6
LEAST, MOST = 12, 400
UNCAPPED_CALLS = 24
WEIGHTS = "fp8_block"
# A green context holds whole groups of SMs; an unfinished one would be rounded up.
PARTITION_SMS = 8


@dataclass(frozen=True)
class Compute:
    """A kernel to repeat: its class, which kernel, and its size (rows; rows for each expert; tokens of
    one sequence, with `count` sequences)."""

    family: str
    kernel: str
    size: int
    count: int = 1

    @property
    def name(self) -> str:
        """`o_proj 2560`."""
        times = f"{self.count} x " if self.count > 1 else ""
        return f"{self.kernel} {times}{self.size}"


@dataclass(frozen=True)
class Pair:
    """A compute kernel beside an exchange of `tokens` tokens a rank on `num_sms` SMs. `capped`: the
    kernel leaves those SMs free (elementwise kernels cannot). `offset`: how much later the second rank
    starts, in times of the compute kernel alone."""

    compute: Compute
    exchange: str
    num_sms: int
    tokens: int
    capped: bool = True
    offset: float = 0.0

    @property
    def name(self) -> str:
        """Identity in both files."""
        how = "capped" if self.capped else f"uncapped, offset {self.offset:g}"
        exchange = f"{self.exchange} {self.tokens} tokens {self.num_sms} SMs"
        return f"{self.compute.name} | {exchange} | {how}"

    def resolved(self) -> Resolved:
        """The scenario whose exchange this is."""
        settings = [
            f"phase.prefill.tokens_per_rank={self.tokens}",
            f"a2a.num_sms={self.num_sms}",
        ]
        return resolve(load(SCENARIO, settings))

    def budget(self, num_sms: int) -> int | None:
        """SMs that the compute kernel is limited to on a GPU of `num_sms`."""
        if not self.capped or self.compute.family == "elementwise":
            return None
        free = num_sms - self.num_sms
        return free - free % PARTITION_SMS if self.compute.family == "attention" else free


SLEEP_NS, COMPUTE_NS, EXCHANGE_NS = 4_000_000, 80_000, 120_000
O_PROJ, Q_B = "o_proj", "q_b"
GATE_UP, DOWN = "gate_up", "down"


def compute_work(compute: Compute, deployment: Deployment) -> Work:
    """The work of one call."""
    model, size = deployment.model, compute.size
    attention, hidden, inner = model.attention, model.hidden_size, model.moe_intermediate_size
    if compute.family == "dense":
        qk_dim = attention.qk_nope_head_dim + attention.qk_rope_head_dim
        n, k = {
            O_PROJ: (hidden, attention.num_heads * attention.v_head_dim),
            Q_B: (attention.num_heads * qk_dim, attention.q_lora_rank),
        }[compute.kernel]
        return gemm(size, n, k, WEIGHTS)
    if compute.family in ("grouped", "weights"):
        masked = compute.family == "weights"
        kind = "grouped_gemm_masked" if masked else "grouped_gemm_contiguous"
        n, k, part = {GATE_UP: (2 * inner, hidden, 1), DOWN: (hidden, inner, 2)}[compute.kernel]
        return grouped_gemm(kind, (size,) * deployment.experts_per_rank, n, k, WEIGHTS, part)
    if compute.family == "attention":
        tokens = compute.count * size
        sums = SequenceSums(compute.count, tokens, tokens, tokens * (size + 1) // 2)
        qk_dim = attention.qk_nope_head_dim + attention.qk_rope_head_dim
        return plain_attention(sums, attention.num_heads, qk_dim, attention.v_head_dim)
    if compute.kernel == "norm1":
        nbytes = size * hidden * BF16
        return elementwise("norm", size, hidden, nbytes, nbytes)
    return work(
        "silu_mul",
        read_bytes=size * 2 * inner * BF16,
        write_bytes=activation_bytes(size, inner, WEIGHTS),
        rows=size,
        columns=inner,
        active=deployment.experts_per_rank,
        masked=0,
        hidden=hidden,
        bits=8,
    )


def compute_op(pair: Pair, deployment: Deployment, machine: Machine) -> Op:
    """The compute kernel as an op of stream main."""
    made = compute_work(pair.compute, deployment)
    budget = pair.budget(machine.num_sms)
    by_context = pair.compute.family == "attention"
    grid = replace(
        machine.grid(made.kind),
        sm_budget=budget,
        limited_by="green_context" if by_context else "grid",
    )
    return Op("compute", "main", made, grid)


@dataclass(frozen=True)
class Parts:
    """What the loops repeat: the compute op, and for each rank notify and transfer with their bytes."""

    compute: Op
    exchange: tuple[tuple[Op, Op], ...]
    traffic: Exchange


def parts_of(pair: Pair, machine: Machine) -> Parts:
    """The ops of a pair, as the builder makes them for the pair's scenario."""
    resolved = pair.resolved()
    program = build(
        "sequential",
        resolved.deployment,
        resolved.batch,
        resolved.routing,
        layers=1,
        launch="eager",
        fold=False,
    )
    chosen = []
    for rank in range(RANKS):
        ops = {op.name: op for op in program.launches(rank)}
        chosen.append((ops[f"L0.{pair.exchange}.notify"], ops[f"L0.{pair.exchange}"]))
    name = chosen[0][1].exchange
    if name is None:
        raise ValueError(f"{pair.name}: the builder's {pair.exchange} is no exchange")
    compute = compute_op(pair, resolved.deployment, machine)
    return Parts(compute, tuple(chosen), program.exchange(name))


def call_counts(pair: Pair, parts: Parts, machine: Machine) -> tuple[int, int]:
    """Calls of the compute loop and of the exchange loop."""
    if not pair.capped:
        return UNCAPPED_CALLS, UNCAPPED_CALLS
    calls_ns = (
        alone_ns(parts.compute, machine),
        sum(alone_ns(op, machine) for op in parts.exchange[0]),
    )
    total = max(TOTAL_NS, *(LEAST * ns for ns in calls_ns))
    compute, exchange = (max(LEAST, min(MOST, round(total / ns))) for ns in calls_ns)
    return compute, exchange


def late_ns(pair: Pair, parts: Parts, machine: Machine) -> int:
    """How much later the second rank starts."""
    return round(pair.offset * alone_ns(parts.compute, machine))


def alone_ns(op: Op, machine: Machine) -> int:
    """The op's time alone, in the profile."""
    return machine.costs.alone(op.work, op.grid, op.grid.enforced_budget or machine.num_sms).ns


def sleep_ns(counts: tuple[int, int]) -> int:
    """How long the gate of a measured pair sleeps, until both loops are launched: a part for itself, and
    one for each call."""
    return SLEEP_NS + counts[0] * COMPUTE_NS + counts[1] * EXCHANGE_NS


def loops(pair: Pair, parts: Parts, counts: tuple[int, int], late: int = 0) -> Program:
    """Both loops behind a gate that the last rank leaves `late` ns later; a count of 0 leaves a loop out.

    As DeepEP orders it, the caller's stream hands over to the comm stream and waits for it.
    """
    classes = tuple(
        RankClass((rank,), _steps(parts, rank, counts, late if rank else 0))
        for rank in range(RANKS)
    )
    exchanges = tuple(replace(parts.traffic, name=f"x{i}") for i in range(counts[1]))
    streams = (Stream("main"), Stream("alt"), Stream("comm"))
    return Program(pair.name, streams, classes, exchanges)


def _steps(parts: Parts, rank: int, counts: tuple[int, int], late: int) -> tuple[Step, ...]:
    gate = Op("gate", "main", spin(1, GATE_NS + late, threads=32, smem_bytes=0), Grid())
    steps: list[Step] = [Launch(gate, "cpp"), Record("gate", "main"), Wait("gate", "alt")]
    steps += [Launch(replace(parts.compute, name=f"c{i}"), "cpp") for i in range(counts[0])]
    for i in range(counts[1]):
        steps += [Record(f"to{i}", "alt"), Wait(f"to{i}", "comm")]
        for op in parts.exchange[rank]:
            name = f"x{i}.notify" if op.role == "notify" else f"x{i}"
            own = replace(
                op, name=name, stream="comm", exchange=f"x{i}", reads=(), writes=(), layer=-1
            )
            steps.append(Launch(own, "cpp"))
        steps += [Record(f"back{i}", "comm"), Wait(f"back{i}", "alt")]
    return tuple(steps)


@dataclass(frozen=True)
class Period:
    """ns from call to call of one loop while the other ran: median and mean, and how many were seen."""

    median_ns: float
    mean_ns: float
    seen: int


def period(ends: Sequence[float], others: Sequence[float] = ()) -> Period | None:
    """From the ends of a loop's calls, the first left out; beside `others` only what lies between the
    first and the last end of that loop. None for fewer than three."""
    inside = [
        (sooner, later)
        for sooner, later in pairwise(ends)
        if not others or (sooner >= others[0] and later <= others[-1])
    ]
    if len(inside) < 3:
        return None
    times = [later - sooner for sooner, later in inside]
    return Period(median(times), mean(times), len(times))
