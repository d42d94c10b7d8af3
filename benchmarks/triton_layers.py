"""Whole MoE layers on the Triton set on two GPUs: every schedule checked, then measured in turn.

    torchrun --nproc-per-node 2 -m benchmarks.triton_layers --phase decode --tokens 64 128
    torchrun --nproc-per-node 2 -m benchmarks.triton_layers --phase prefill --tokens 4096 --comm-sms 20
    torchrun --nproc-per-node 2 -m benchmarks.triton_layers --phase decode --sbo-sms 8 --tokens 64

`--sbo-sms` gives single-batch overlap's combine that many SMs instead of the serving engine's number.
Without `--tokens` only results are checked. Lines say the error against the plain model, the error against sequential, and the median time of a
layer with its extremes; everything goes to `triton_layers_{phase}.json` in the folder named by OUT.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
import torch.distributed as dist

from benchmarks.production_plan import SCENARIO, uniform
from executor.execute import execute
from executor.peers import gathered
from executor.production import Production
from executor.production_setup import plain_output, relative_error, run_output
from executor.sessions import Sessions
from models.deployment import Batch, Deployment
from models.fusion_deployment import forced_fusion
from models.routing import Routing, RoutingSpec, route
from models.sglang_rules import load_rules
from scenarios import load
from scenarios.resolve import resolve
from schedules.builders import build
from schedules.program import Program

SCHEDULES = {
    "decode": ("sequential", "baseline", "sbo.v1", "sbo.v1b", "sbo.v2", "tbo"),
    "prefill": ("sequential", "baseline", "tbo"),
}
FUSED = ("baseline+fused", "baseline+fused+waterfill", "tbo+fused")
# Waterfill moves nothing below 64 tokens on a rank, and half of that in a child.
CHECKED_TOKENS = {"decode": 96, "prefill": 256}


class Layers:
    """One rank's session and what it has measured."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.phase, self.layers = arguments.phase, arguments.layers
        self.repeats, self.rank = arguments.repeats, int(os.environ["RANK"])
        split = {load_rules().sbo.comm_sms_env: str(arguments.sbo_sms)}
        self.env = split if arguments.sbo_sms else {}
        base = resolve(load(SCENARIO.format(phase=self.phase))).deployment
        self.deployment: Deployment = replace(
            base, a2a=replace(base.a2a, num_sms=arguments.comm_sms)
        )
        world, most = dist.group.WORLD, max([*arguments.tokens, CHECKED_TOKENS[self.phase]])
        self.sessions = Sessions(
            self.rank, dist.get_world_size(), world, arguments.comm_sms, 0, lambda what: None,
            "triton", most,
        )  # fmt: skip
        self.records: list[dict[str, Any]] = []
        self.began = time.monotonic()

    def routing(self, batch: Batch) -> Routing:
        """Uniform, by seed."""
        return route(RoutingSpec(seed=0), batch.tokens, self.deployment.model)

    def program(
        self, schedule: str, batch: Batch, layers: int, launch: Literal["eager"] | None
    ) -> Program:
        """The schedule's program."""
        return build(
            schedule, self.deployment, batch, self.routing(batch), layers=layers, launch=launch,
            allow_refused=True, env=self.env,
        )  # fmt: skip

    def kernels(self, schedule: str, batch: Batch, layers: int) -> Production:
        """The kernel set of a schedule, with its fusion."""
        deployment = self.deployment
        if "+" in schedule:
            deployment = replace(deployment, fusion=forced_fusion(deployment, "water" in schedule))
        session = self.sessions.of(deployment)
        return self.sessions.kernel_set(
            session, batch, self.routing(batch), layers=layers, deadline_s=120.0
        )

    def report(self, record: dict[str, Any]) -> None:
        """Keep and print a record on rank 0."""
        self.records.append(record)
        if self.rank == 0:
            print(f"[{time.monotonic() - self.began:6.1f} s] {json.dumps(record)}", flush=True)
            folder = Path(os.environ.get("OUT", "."))
            text = json.dumps(self.records)
            (folder / f"triton_layers_{self.phase}.json").write_text(text)

    def check(self) -> None:
        """One layer of every schedule against the plain model and against sequential."""
        batch = uniform(self.phase, CHECKED_TOKENS[self.phase])
        first = None
        for schedule in (*SCHEDULES[self.phase], *FUSED):
            program = self.program(schedule, batch, 1, "eager")
            kernels = self.kernels(schedule, batch, 1)
            out = run_output(program, kernels, self.rank)
            out = run_output(program, kernels, self.rank)
            start = kernels.inputs["in.hidden"]
            session = self.sessions.of(self.deployment)
            plain = plain_output(session, kernels, batch, self.routing(batch), 1)
            first = out if first is None else first
            pair = (relative_error(out, plain, start), relative_error(out, first, start))
            worst = [max(both) for both in zip(*gathered(pair), strict=True)]
            self.report({"check": schedule, "error": worst[0], "against_sequential": worst[1]})

    def measure(self, tokens: int) -> None:
        """All schedules in turn; in a graph where the schedule has one."""
        batch = uniform(self.phase, tokens)
        runs = {}
        for schedule in SCHEDULES[self.phase]:
            kernels = self.kernels(schedule, batch, self.layers)
            execute(self.program(schedule, batch, 1, "eager"), kernels, rank=self.rank)
            program = self.program(schedule, batch, self.layers, None)
            execute(program, kernels, rank=self.rank)
            runs[schedule] = (program, kernels)
        times: dict[str, list[int]] = {schedule: [] for schedule in runs}
        for turn in range(self.repeats + 2):
            for schedule, (program, kernels) in runs.items():
                execute(program, kernels, rank=self.rank)
                if turn >= 2:
                    times[schedule].append(max(gathered(kernels.makespan_ns)))
        sequential = median(times["sequential"])
        for schedule, taken in times.items():
            us = sorted(round(ns / self.layers / 1000, 1) for ns in taken)
            record = {"tokens": tokens, "schedule": schedule, "layer_us": median(us)}
            record |= {"low_us": us[0], "high_us": us[-1]}
            self.report(record | {"gain": round(median(taken) / sequential - 1, 4)})


def main() -> None:
    """Check, then measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phase", choices=tuple(SCHEDULES), default="decode")
    parser.add_argument("--tokens", type=int, nargs="*", default=[])
    parser.add_argument("--sbo-sms", type=int)
    parser.add_argument("--comm-sms", type=int, default=20)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    layers = Layers(arguments)
    layers.check()
    for tokens in arguments.tokens:
        layers.measure(tokens)
    os._exit(0)


if __name__ == "__main__":
    main()
