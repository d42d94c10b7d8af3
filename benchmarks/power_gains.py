"""What rest is worth to kernels bound by arithmetic, on one GPU: does each GPU gain alike?

    torchrun --nproc-per-node 1 -m benchmarks.power_gains measure -o gains.jsonl
    python -m benchmarks.power_gains table benchmarks/data/power_gains_h200.jsonl

Attention, a dense and a grouped GEMM run in turn for two seconds a setting, back to back or with a rest
behind so many turns in which the GPU sleeps or streams through HBM with all or a few SMs, so that from 1 to
about 0.55 of the time goes to arithmetic. Kernels are timed between events once the power control has settled,
the SMs' clock is counted by their own cycles. `measure` adds a line a setting; `table` prints, for each GPU of
a file, clocks, times, and what a straight line says that each kernel saves.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.ranks import joined
from benchmarks.validation_files import read
from models.errors import InputError

if TYPE_CHECKING:
    from executor.calibrate.subjects import Subject

# How often each kernel runs in a turn of 4.6 ms: 62, 20 and 18 % of it.
TURN = {"attention": 6, "dense": 2, "grouped": 1}
LOADS = (1.0, 0.9, 0.8, 0.7, 0.6)
# What the GPU does in a rest, the share of time wanted for arithmetic, turns between two rests. The last
# setting is the first again: what drift there was.
SETTINGS = (
    *(("sleep", load, 1) for load in LOADS),
    *((rest, load, 1) for rest in ("stream", "few", "some") for load in (0.8, 0.6)),
    *((rest, load, 8) for rest in ("sleep", "few", "some") for load in (0.8, 0.6)),
    ("sleep", 1.0, 1),
)
# SMs that stream in a rest: all, and as few as an exchange has.
STREAMING = {"few": 8, "some": 32}
FIRST_S, SETTLE_S, TIMED_S = 3.0, 1.4, 0.8
CYCLES_PER_NS = 1.98
LIMIT_S = 120.0


class Turns:
    """The kernels of one GPU, in turn, and a rest behind them."""

    def __init__(
        self, subjects: Mapping[str, Subject], streams: Mapping[str, Callable[[], Any]]
    ) -> None:
        import torch

        from benchmarks.sm_clock import SmClock

        self.torch, self.subjects, self.streams = torch, subjects, streams
        self.clock = SmClock()
        self.stream_ns = {name: self._alone(call) for name, call in streams.items()}

    def _alone(self, call: Callable[[], Any], count: int = 20) -> float:
        start, end = self._event(), self._event()
        for _ in range(count):
            call()
        start.record()
        for _ in range(count):
            call()
        end.record()
        self.torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e6 / count

    def _event(self) -> Any:
        return self.torch.cuda.Event(enable_timing=True)

    def run(
        self, kind: str, rest_ns: float, turns: int, seconds: float
    ) -> tuple[list[dict[str, float]], float]:
        """So many turns and a rest, over and over: median ns of each kernel's call [turn], and the median ns
        from one rest to the next."""
        rounds: list[list[Any]] = []
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            rounds.append(self._round(kind, rest_ns, turns))
            # The host stays a few rounds ahead, no more.
            if len(rounds) > 4:
                rounds[-4][0].synchronize()
        self.torch.cuda.synchronize()
        times = [
            {
                name: median(
                    marks[at].elapsed_time(marks[at + 1]) * 1e6 / TURN[name] for marks in rounds
                )
                for at, name in enumerate(TURN, start=turn * len(TURN))
            }
            for turn in range(turns)
        ]
        periods = [a[0].elapsed_time(b[0]) * 1e6 for a, b in pairwise(rounds)]
        return times, median(periods)

    def _round(self, kind: str, rest_ns: float, turns: int) -> list[Any]:
        marks = [self._event()]
        marks[0].record()
        for _ in range(turns):
            for name, count in TURN.items():
                for _ in range(count):
                    self.subjects[name].call()
                marks.append(self._event())
                marks[-1].record()
        if kind in self.streams:
            for _ in range(round(rest_ns / self.stream_ns[kind])):
                self.streams[kind]()
        elif rest_ns:
            self.torch.cuda._sleep(round(rest_ns * CYCLES_PER_NS))
        return marks


def measure(out: Path, gpu: str) -> None:
    """A line for each setting."""
    from executor.calibrate.clocks import Watch, nvml_reader

    rank, ranks, watchdog = joined(LIMIT_S)
    turns = turns_of(rank, ranks, watchdog.beat)
    reader = nvml_reader(rank)
    turns.run("sleep", 0.0, 1, FIRST_S)
    _, busy_ns = turns.run("sleep", 0.0, 1, TIMED_S)
    for kind, load, length in SETTINGS:
        watchdog.beat(f"{kind} {load}")
        rest_ns = length * busy_ns * (1.0 / load - 1.0)
        turns.run(kind, rest_ns, length, SETTLE_S)
        with Watch(reader) as watch:
            turns.clock.start()
            times, period_ns = turns.run(kind, rest_ns, length, TIMED_S)
            mhz = turns.clock.mhz()
        state = watch.state
        busy = sum(TURN[name] * ns for turn in times for name, ns in turn.items())
        entry = {
            "gpu": gpu,
            "rest": kind,
            "turns": length,
            "load": round(min(1.0, busy / period_ns), 4),
            "us": [{name: round(ns / 1e3, 2) for name, ns in turn.items()} for turn in times],
            "mhz": round(mhz),
            "watts": state.watts if state else 0,
            "celsius": state.celsius if state else 0,
        }
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        print(entry, flush=True)
    watchdog.stop()
    os._exit(0)


def turns_of(rank: int, ranks: int, beat: Callable[[str], None]) -> Turns:
    """The kernels at the sizes that a calibration has beside exchanges, on all SMs."""
    import torch.distributed as dist

    from executor.calibrate.cases import DEFAULT_SCENARIOS, put_on
    from executor.calibrate.subjects import compute_subject, stream_subject
    from executor.sessions import Sessions
    from scenarios import load
    from scenarios.resolve import resolve

    sessions = Sessions(rank, ranks, dist.group.WORLD, 32, 0, beat)
    settings = [*put_on(ranks, ""), "phase.decode.batch_per_rank=96"]
    deployment = resolve(load(DEFAULT_SCENARIOS["decode"], settings)).deployment
    session, num_sms = sessions.of(deployment), deployment.machine.num_sms
    subjects = {name: compute_subject(session, name, num_sms, num_sms) for name in TURN}
    beat("compiling")
    for subject in subjects.values():
        subject.call()
    streams = {"stream": compute_subject(session, "norm", num_sms, num_sms).call}
    streams |= {name: stream_subject("full", sms).call for name, sms in STREAMING.items()}
    return Turns(subjects, streams)


def table(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Clock, and times over those at full load, for each GPU and setting: mean over the turns, and of the first
    turn behind a rest. Then what a straight line through the loads with one turn between rests in which the GPU
    sleeps says that each kernel saves for a unit of rest."""
    told = [
        "GPU  rest   turns  load   MHz    W   "
        + "  ".join(f"{name:>9}" for name in TURN)
        + "   first turn behind the rest"
    ]
    for gpu, own in groupby(entries, key=lambda entry: entry["gpu"]):
        rows = list(own)
        full = {name: mean_us(rows[-1], name) for name in TURN}
        for row in rows:
            ratios = "  ".join(f"{mean_us(row, n) / full[n]:9.3f}" for n in TURN)
            first = "  ".join(f"{row['us'][0][n] / full[n]:9.3f}" for n in TURN)
            told.append(
                f"{gpu:4} {row['rest']:6} {row['turns']:5}  {row['load']:4.2f}  {row['mhz']:4}  "
                f"{row['watts']:3}   {ratios}   {first if row['turns'] > 1 else ''}"
            )
        short = [row for row in rows if row["rest"] == "sleep" and row["turns"] == 1]
        shares = {name: gained(short, name) for name in TURN}
        told.append(
            f"{gpu:4} saves for each unit of rest, up to where its clock is highest: "
            + ", ".join(f"{n} {s:.2f} (to {most:.2f})" for n, (s, most) in shares.items())
        )
    return told


def mean_us(row: Mapping[str, Any], name: str) -> float:
    """Mean over the turns."""
    return fmean(turn[name] for turn in row["us"])


def gained(rows: Iterable[Mapping[str, Any]], name: str) -> tuple[float, float]:
    """(share, most) with which `1 - share * min(rest, most)` is nearest to a kernel's times over those at
    full load."""
    found = list(rows)
    rest = np.array([1.0 - row["load"] for row in found])
    us = np.array([mean_us(row, name) for row in found])
    best = (np.inf, 0.0, 0.0)
    for most in np.linspace(0.05, 0.45, 41):
        counted = np.minimum(rest, most)
        slope, level = np.polyfit(counted, us, 1)
        left = float(np.sum((level + slope * counted - us) ** 2))
        best = min(best, (left, -slope / level, float(most)))
    return best[1], best[2]


def main(given: Sequence[str] | None = None) -> None:
    """Parse; measure or print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("measure", "table"))
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("-o", "--output", type=Path, default=Path("gains.jsonl"))
    parser.add_argument("--gpu", default="a", help="a name for this GPU")
    arguments = parser.parse_args(given)
    if arguments.what == "measure":
        measure(arguments.output, arguments.gpu)
    elif arguments.file is None:
        parser.error("table needs a file of measurements")
    else:
        try:
            entries = read(arguments.file)
        except InputError as error:
            parser.error(str(error))
        sys.stdout.write("\n".join(table(entries)) + "\n")


if __name__ == "__main__":
    main()
