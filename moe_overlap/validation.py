"""What `validate` says: schedules predicted beside measured, and the ops whose times differ most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from types import MappingProxyType
from typing import Any, Literal

from moe_overlap.uncertain import Prediction
from schedules.timeline import Timeline
from viz.validation import OpError, compare_ops

WORST = 10


HostChoice = Literal["measured", "profile"]


@dataclass(frozen=True)
class OwnHost:
    """A prediction with the host that was probed beside the measurement: its times over the profile's,
    the rank whose host it is, and the ns predicted with the profile's own host."""

    ratio: float
    rank: int
    profile_ns: float


@dataclass(frozen=True)
class Row:
    """One schedule: microseconds of all layers. `band_low_us` to `band_high_us` is the prediction's band,
    `low_us` to `high_us` are the repeats. Gains are over the first schedule, `t / t_first - 1`; `tie`:
    the predicted difference to it is within its uncertainty; `call`: whether the measured one is outside
    the repeats; `sign`: whether both gains have the same sign, empty where the call is not clear.
    `host_ratio` is the probed host's time over the profile's, null where it was predicted with the
    profile's own host; `profile_host_error` is the error with that; `probe_rank` is the rank whose host
    that was, the slowest."""

    schedule: str
    predicted_us: float
    band_low_us: float
    band_high_us: float
    measured_us: float
    low_us: float
    high_us: float
    error: float
    in_band: bool
    predicted_gain: float
    measured_gain: float
    tie: bool
    call: str
    sign: str
    host_ratio: float | None
    profile_host_error: float
    probe_rank: int | None


def table_rows(
    predicted: Mapping[str, Prediction],
    measured: Mapping[str, tuple[int, ...]],
    hosts: Mapping[str, OwnHost] = MappingProxyType({}),
) -> list[Row]:
    """A row a schedule; the first one is what gains are over. A measured gain is too close to call
    when the two schedules' repeats overlap. `hosts`: of those whose host was probed."""
    first = next(iter(predicted))
    return [
        _row(
            name,
            own,
            measured[name],
            predicted[first],
            measured[first],
            name == first,
            hosts.get(name),
        )
        for name, own in predicted.items()
    ]


def _row(
    name: str,
    own: Prediction,
    times: tuple[int, ...],
    base: Prediction,
    base_times: tuple[int, ...],
    first: bool,
    host: OwnHost | None,
) -> Row:
    middle = median(times)
    apart = max(times) < min(base_times) or min(times) > max(base_times)
    gains = (own.ns / base.ns - 1, middle / median(base_times) - 1)
    band = own.band_ns
    right = "right" if (gains[0] < 0) == (gains[1] < 0) else "wrong"
    return Row(
        schedule=name,
        predicted_us=own.ns / 1000,
        band_low_us=band[0] / 1000,
        band_high_us=band[1] / 1000,
        measured_us=middle / 1000,
        low_us=min(times) / 1000,
        high_us=max(times) / 1000,
        error=own.ns / middle - 1,
        in_band=band[0] <= middle <= band[1],
        predicted_gain=gains[0],
        measured_gain=gains[1],
        tie=not first and abs(own.ns - base.ns) <= own.noise_against(base),
        call="" if first else "clear" if apart else "too close to call",
        sign=right if apart and not first else "",
        host_ratio=host.ratio if host else None,
        profile_host_error=(host.profile_ns if host else own.ns) / middle - 1,
        probe_rank=host.rank if host else None,
    )


def lines(rows: Sequence[Row]) -> list[str]:
    """The table, and the worst error of a gain."""
    text = [
        f"{'schedule':<14}{'predicted µs':>14}{'band µs':>21}{'measured µs':>13}{'repeats µs':>21}"
        f"{'error':>9}{'gain pred.':>12}{'gain meas.':>12}"
    ]
    for r in rows:
        said = ", ".join(part for part in (r.call, r.sign and f"sign {r.sign}") if part)
        text.append(
            f"{r.schedule:<14}{r.predicted_us:>14.1f}{_span(r.band_low_us, r.band_high_us):>21}"
            f"{r.measured_us:>13.1f}{_span(r.low_us, r.high_us):>21}{r.error:>+9.1%}"
            f"{r.predicted_gain:>+12.1%}{r.measured_gain:>+12.1%}  {said}"
            f"{' (predicted: a tie)' if r.tie else ''}"
        )
    held = sum(r.in_band for r in rows)
    text.append(f"the band holds {held} of {len(rows)}")
    worst = max(rows, key=lambda r: abs(r.predicted_gain - r.measured_gain))
    points = worst.predicted_gain - worst.measured_gain
    text.append(f"worst error of a gain: {worst.schedule}, {100 * points:+.1f} points")
    return text


def _span(low: float, high: float) -> str:
    return f"[{low:.1f}, {high:.1f}]"


def host_lines(rows: Sequence[Row], wanted: HostChoice) -> list[str]:
    """Whose host was predicted with, and the errors with the profile's own where it was not that."""
    found = [r for r in rows if r.host_ratio is not None]
    text = [
        f"{r.schedule}: host {r.host_ratio:.2f} of the profile's, by rank {r.probe_rank}'s probes beside "
        f"the measurement; error with the profile's own {r.profile_host_error:+.1%}"
        for r in found
    ]
    without = ", ".join(r.schedule for r in rows if r.host_ratio is None)
    why = "" if wanted == "profile" else ": no probe of it stands beside the measurement"
    return [*text, *([f"{without}: the profile's own host{why}"] if without else [])]


def ops_of(pairs: Mapping[str, tuple[Timeline, Timeline]]) -> dict[str, tuple[OpError, ...]]:
    """Every schedule's ops, predicted beside measured."""
    return {name: compare_ops(*pair).ops for name, pair in pairs.items()}


def worst_ops(ops: Mapping[str, Sequence[OpError]]) -> list[tuple[str, OpError]]:
    """The ten ops of all schedules that are furthest off in all their spans together."""
    named = [(name, op) for name, found in ops.items() for op in found]
    return sorted(named, key=lambda item: (-abs(item[1].off_us), item[0], item[1].name))[:WORST]


def worst_lines(ops: Mapping[str, Sequence[OpError]]) -> list[str]:
    """The table of them; nothing without spans."""
    found = worst_ops(ops)
    if not found:
        return []
    text = [
        "",
        f"{'furthest off':<34}{'predicted µs':>14}{'measured µs':>13}{'off, all spans µs':>19}  cause",
    ]
    for name, op in found:
        text.append(
            f"{f'{name}: {op.name}':<34}{op.predicted_us:>14.1f}{op.measured_us:>13.1f}"
            f"{op.off_us:>+19.1f}  {op.cause}"
        )
    return text


def document(
    scenario: str, rows: Sequence[Row], ops: Mapping[str, Sequence[OpError]]
) -> dict[str, Any]:
    """What `--json` prints; `docs/formats.md` describes it."""
    return {
        "schema": 1,
        "scenario": scenario,
        "schedules": [asdict(row) | {"ops": [_op(op) for op in ops[row.schedule]]} for row in rows],
        "worst": [{"schedule": name} | _op(op) for name, op in worst_ops(ops)],
    }


def _op(op: OpError) -> dict[str, Any]:
    return {
        "op": op.name,
        "predicted_us": op.predicted_us,
        "measured_us": op.measured_us,
        "spans": op.pairs,
        "cause": op.cause,
    }
