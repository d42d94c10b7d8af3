"""What a calibration wrote, as values: times alone, slowdowns beside others, gaps, host costs.

A record is a JSON object whose `what` says which of these it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from models.calibrated_power import Take, TimedKernels, at_rest, fit_power
from models.calibration_schema import checked
from models.fit import Beside
from models.kernel_names import NO_TILE, tile_of
from models.measured import MeasuredPoint, is_held, point_key, spread_of
from models.power_law import PowerLaw, Sheet
from models.work import Work

RESOURCES = ("threads", "registers", "smem_bytes")
# A call less than half as long as its neighbour's that is late by more than this share of the
# neighbour's was not slowed: it waited for SMs until that ended.
SHORT, WAITED = 0.5, 0.25


@dataclass(frozen=True, slots=True)
class Slowed:
    """A kernel beside others: the `victim` and `aggressor` by name, the victim's `kinds` of work or
    its exchange `family`, and the figures that the law of interference takes. Of an exchange also its
    direction (`dispatch` or `combine`), SMs and tokens a rank (0: not told)."""

    victim: str
    aggressor: str
    kinds: tuple[str, ...]
    family: str
    beside: Beside
    held: bool
    exchange: str = ""
    sms: int = 0
    tokens: int = 0


@dataclass
class Records:
    """All records of one calibration, sorted out. `gaps_ns` and `host_ns` are medians, `host_error` the
    relative spread of the host's times over the tasks; `machine` is what the GPU and the libraries call
    themselves."""

    points: tuple[MeasuredPoint, ...] = ()
    slowed: tuple[Slowed, ...] = ()
    gaps_ns: dict[str, int] = field(default_factory=dict)
    host_ns: dict[str, int] = field(default_factory=dict)
    host_error: float = 0.0
    hbm_gbps: float = 0.0
    footprints: dict[str, dict[str, int]] = field(default_factory=dict)
    holds: tuple[Mapping[str, Any], ...] = ()
    signals: tuple[Mapping[str, Any], ...] = ()
    machine: dict[str, Any] = field(default_factory=dict)
    throttled: tuple[str, ...] = ()
    others: bool = False
    power: PowerLaw | None = None
    takes: tuple[Take, ...] = ()


def sorted_out(
    records: Iterable[Mapping[str, Any]], seed: int, source: str, sheet: Sheet | None = None
) -> Records:
    """The records of a calibration; InputError names one that is none (`calibration_schema`). With the
    GPU's data `sheet` the power law is fitted, and points are times at rest."""
    result = Records()
    timed = TimedKernels(sheet)
    slowed: list[Mapping[str, Any]] = []
    host: dict[str, list[float]] = {}
    trace_gaps: list[float] = []
    launched: dict[str, list[Mapping[str, Any]]] = {}
    reasons: set[str] = set()
    for record in checked(records, source):
        what = record["what"]
        if what == "alone":
            point = _point(record, seed)
            timed.kernel(record.get("task", ""), point, record.get("runs", 0))
            launched.setdefault(point.work.kind, []).extend(record.get("launches", ()))
        elif what == "run":
            period_ns = record.get("period_ns")
            timed.run(record.get("task", ""), record["ns"], record["count"], period_ns)
        elif what == "beside":
            slowed.append(record)
        elif what == "gaps":
            result.gaps_ns |= {name: round(ns) for name, ns in record["ns"].items()}
        elif what == "host":
            host.setdefault(record["class"], []).append(record["ns"])
        elif what == "trace_gap":
            trace_gaps.append(record["ns"])
        elif what == "hbm":
            result.hbm_gbps = max(result.hbm_gbps, record["gbps"])
        elif what == "hold":
            result.holds += (record,)
        elif what == "signals":
            result.signals += (record,)
        elif what == "machine":
            result.machine |= machine_record(record)
        reasons.update(record.get("throttled", ()))
        result.others |= bool(record.get("others"))
    result.footprints = _footprints(launched)
    result.takes = takes = tuple(timed.takes())
    result.power = fit_power(takes, sheet) if sheet is not None else None
    result.points = _points(takes, result.power)
    beside = _beside_each_other(slowed)
    result.slowed = tuple(_slowed(r, seed, result.hbm_gbps) for r in beside)
    result.host_ns = {name: round(median(values)) for name, values in sorted(host.items())}
    result.host_error = _spread_over_tasks(host.values())
    if trace_gaps and "stream" in result.gaps_ns:
        result.gaps_ns = seen_by_profiler(result.gaps_ns, median(trace_gaps))
    result.throttled = tuple(sorted(reasons))
    return result


def _footprints(launched: Mapping[str, list[Mapping[str, Any]]]) -> dict[str, dict[str, int]]:
    """By kind of work what its longest launch took of an SM."""
    return {
        kind: _footprint(longest)
        for kind, launches in launched.items()
        if (longest := _longest(launches)) is not None
    }


def machine_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says of the machine."""
    return {name: value for name, value in record.items() if name not in ("what", "task")}


def machine_of(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What all records say of the machine."""
    found: dict[str, Any] = {}
    for record in records:
        if record.get("what") == "machine":
            found |= machine_record(record)
    return found


def _points(takes: Iterable[Take], law: PowerLaw | None) -> tuple[MeasuredPoint, ...]:
    """One point of all takes of a kernel on as many SMs."""
    same: dict[str, list[MeasuredPoint]] = {}
    for take in takes:
        point = at_rest(take, law)
        same.setdefault(point.key, []).append(point)
    return tuple(_merged(points) for _, points in sorted(same.items()))


def _spread_over_tasks(groups: Iterable[list[float]]) -> float:
    """Half of the range from the 10th to the 90th percentile of each kind's times over their median; the
    median of all kinds. A task has one time of a kind, of all its launches: a host changes its
    speed from one minute to the next, and all kinds with it."""
    halves = [spread_of(values) / 2 for values in groups]
    return median(halves) if halves else 0.0


def seen_by_profiler(gaps_ns: Mapping[str, int], stream_ns: float) -> dict[str, int]:
    """Gaps that fit kernel times from a profiler, which counts a kernel's launch into its time: every
    gap between kernels is shorter by as much as that of a stream is."""
    less = max(0.0, gaps_ns["stream"] - stream_ns)
    kept = ("reaction",)
    return {name: ns if name in kept else max(0, round(ns - less)) for name, ns in gaps_ns.items()}


def work_record(work: Work) -> dict[str, Any]:
    """A work as a JSON object."""
    return {
        "kind": work.kind,
        "dims": dict(work.dims),
        "flops": dict(work.flops),
        "read_bytes": work.read_bytes,
        "write_bytes": work.write_bytes,
    }


def work_of(record: Mapping[str, Any]) -> Work:
    """The work that `work_record` wrote."""
    return Work(
        record["kind"],
        tuple(sorted(record["dims"].items())),
        tuple(sorted(record["flops"].items())),
        record["read_bytes"],
        record["write_bytes"],
    )


def _longest(launches: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return max(launches, key=lambda launch: launch["ns"], default=None)


def _footprint(record: Mapping[str, Any]) -> dict[str, int]:
    return {name: record[name] for name in ("ctas", *RESOURCES)}


def _point(record: Mapping[str, Any], seed: int) -> MeasuredPoint:
    work, sms = work_of(record["work"]), record["sms"]
    launches = record.get("launches", ())
    longest = _longest(launches)
    return MeasuredPoint(
        work,
        sms,
        float(record["ns"]),
        float(record["spread"]),
        record.get("mhz", 0),
        record.get("watts", 0),
        is_held(point_key(work, sms), seed),
        len(launches),
        longest["ctas"] if longest else 0,
        tile_of(work, longest["kernel"], longest["threads"]) if longest else NO_TILE,
    )


def _merged(same: list[MeasuredPoint]) -> MeasuredPoint:
    """One point of several takes: their median, and the larger of their own spread and theirs."""
    times = [point.ns for point in same]
    middle = median(times)
    first = same[0]
    return MeasuredPoint(
        first.work,
        first.sms,
        middle,
        max(median(p.spread for p in same), (max(times) - min(times)) / middle),
        round(median(p.mhz for p in same)),
        round(median(p.watts for p in same)),
        first.held,
        first.launches,
        first.ctas,
        first.tile,
    )


def _slowed(record: Mapping[str, Any], seed: int, achievable: float) -> Slowed:
    """`gbps` is what the aggressor drew; its share of the most that anything drew is rho."""
    key = f"{record['victim']} beside {record['aggressor']}"
    rho = record["gbps"] / achievable if achievable else 0.0
    return Slowed(
        record["victim"],
        record["aggressor"],
        tuple(record["kinds"]),
        record["family"],
        Beside(float(record["slowdown"]), float(record["busy"]), float(rho)),
        is_held(key, seed),
        *_exchange_of(record),
    )


def _exchange_of(record: Mapping[str, Any]) -> tuple[str, int, int]:
    """Direction, SMs and tokens of a victim that is an exchange; the task names the tokens."""
    if not record["family"] or not record.get("exchange"):
        return "", 0, 0
    sizes = dict(part.split("=", 1) for part in record.get("task", "").split() if "=" in part)
    tokens = int(sizes.get("tokens", 0))
    return record["exchange"].removesuffix("_ll"), record["exchange_sms"], tokens


def _waited(record: Mapping[str, Any]) -> bool:
    if not record.get("family") or not record.get("alone_ns"):
        return False
    other_ns, own_ns = record["alone_ns"]
    late_ns = (record["slowdown"] - 1.0) * own_ns
    return bool(own_ns < SHORT * other_ns and late_ns > WAITED * other_ns)


def _beside_each_other(slowed: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without the exchanges that waited for their neighbour's end, and without the compute kernels whose
    exchange has no slowdown of its own: it hardly ran beside them."""
    slowed = [record for record in slowed if not _waited(record)]
    ran = {(record.get("victim"), record.get("aggressor")) for record in slowed}
    return [
        record
        for record in slowed
        if record.get("family")
        or not record.get("exchange")
        or (record.get("aggressor"), record.get("victim")) in ran
    ]
