"""The programs that a calibration measures: a scenario's layers in sequence, at the plan's sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from executor.calibrate.compile import GEMM_KINDS, Job, jobs_of
from executor.calibrate.plan import (
    DENSE_ROWS,
    GROUPED_ROWS,
    THIN_ROWS,
    WEIGHT_ROWS,
    WEIGHT_ROWS_ALLOCATED,
    Task,
)
from models.counts import gemm, grouped_gemm
from models.deployment import Batch, Deployment
from models.routing import Routing
from scenarios import load
from scenarios.resolve import resolve
from schedules.builders import build
from schedules.program import Launch, Op, Program, Step

LAYERS = 4
DEFAULT_SCENARIOS: Mapping[str, str] = {
    "prefill": "deepseek-v3-h200-ep2-prefill",
    "decode": "deepseek-v3-h200-ep2-decode",
}


@dataclass(frozen=True)
class Case:
    """One size of a scenario and its program: every op alone, one after the other."""

    deployment: Deployment
    batch: Batch
    routing: Routing
    program: Program

    def ops(self, rank: int) -> dict[str, Op]:
        """The rank's ops by name."""
        return {op.name: op for op in self.program.launches(rank)}


def put_on(ranks: int, hardware: str) -> list[str]:
    """Settings that put a scenario on this many ranks of a machine ("": its own)."""
    machine = [f"hardware={hardware}"] if hardware else []
    return [*machine, f"parallel.ep={ranks}", f"parallel.attention_dp={ranks}"]


def case_of(task: Task, scenarios: Mapping[str, str], ranks: int, hardware: str = "") -> Case:
    """The case of a `layers` task on this many ranks, launched eagerly so that a profiler can tell
    ops apart."""
    params, phase = dict(task.params), task.text("phase")
    settings = put_on(ranks, hardware)
    if phase == "prefill":
        settings += [
            f"phase.prefill.tokens_per_rank={task.number('tokens')}",
            f"a2a.num_sms={task.number('num_sms')}",
        ]
    else:
        settings += [
            f"phase.decode.batch_per_rank={task.number('tokens')}",
            f"phase.decode.kv_tokens={task.number('kv')}",
        ]
    resolved = resolve(load(scenarios[phase], settings))
    deployment, batch, routing = resolved.deployment, resolved.batch, resolved.routing
    program = build(
        "sequential", deployment, batch, routing, layers=LAYERS, launch="eager", fold=False
    )
    program = capped(program, task.number("cap"))
    return Case(deployment, batch, routing, with_sends(program, int(params.get("send", 0))))


def with_sends(program: Program, sms: int) -> Program:
    """The program with the combine's low-latency sends on `sms` SMs; 0 leaves them as they are."""
    return _limited(program, ("combine_send",), sms) if sms else program


def capped(program: Program, cap: int) -> Program:
    """The program with its GEMMs limited to `cap` SMs; 0 lifts every limit."""
    return _limited(program, GEMM_KINDS, cap)


def _limited(program: Program, kinds: Sequence[str], sms: int) -> Program:
    def limited(step: Step) -> Step:
        if not isinstance(step, Launch) or step.op.work.kind not in kinds:
            return step
        grid = replace(step.op.grid, sm_budget=sms or None, limited_by="grid")
        return replace(step, op=replace(step.op, grid=grid))

    return replace(
        program,
        classes=tuple(
            replace(cls, steps=tuple(limited(step) for step in cls.steps))
            for cls in program.classes
        ),
    )


def gemms_of(
    tasks: Iterable[Task], scenarios: Mapping[str, str], ranks: int, hardware: str = ""
) -> list[Job]:
    """Distinct GEMMs of all tasks: what has to be compiled."""
    seen: dict[Job, None] = {}
    for task in tasks:
        if task.kind == "layers":
            jobs = _layer_jobs(task, scenarios, ranks, hardware)
        elif task.kind in ("pairs", "hold"):
            jobs = _pair_jobs(task, scenarios, ranks, hardware)
        else:
            continue
        seen |= dict.fromkeys(jobs)
    return list(seen)


def _layer_jobs(
    task: Task, scenarios: Mapping[str, str], ranks: int, hardware: str
) -> Iterable[Job]:
    case = case_of(task, scenarios, ranks, hardware)
    allocated = ranks * case.deployment.a2a.max_dispatch_tokens_per_rank
    return jobs_of([case.program], case.batch, case.routing, allocated)


def _pair_jobs(
    task: Task, scenarios: Mapping[str, str], ranks: int, hardware: str
) -> Iterator[Job]:
    """The GEMM of a `pairs` or `hold` task, on the SMs that its exchange leaves."""
    phase = "decode" if ranks == 1 else "prefill"
    settings = put_on(ranks, hardware)
    deployment = resolve(load(scenarios[phase], settings)).deployment
    model, experts = deployment.model, deployment.experts_per_rank
    taken = task.number("num_sms") if task.kind == "pairs" else 0
    width = model.attention.num_heads * model.attention.v_head_dim
    inner, hidden = model.moe_intermediate_size, model.hidden_size
    grouped = {
        "grouped": ("grouped_gemm_contiguous", GROUPED_ROWS),
        "weights": ("grouped_gemm_masked", WEIGHT_ROWS),
        "thin": ("grouped_gemm_masked", THIN_ROWS),
    }
    name, cap = task.text("compute"), deployment.machine.num_sms - taken
    if name == "dense":
        work = gemm(DENSE_ROWS, hidden, width, "fp8_block")
        yield work, cap, WEIGHT_ROWS_ALLOCATED, WEIGHT_ROWS
    elif name in grouped:
        kind, rows = grouped[name]
        sizes = (rows,) * experts
        work = grouped_gemm(kind, sizes, 2 * inner, hidden, "fp8_block", 1)
        yield work, cap, WEIGHT_ROWS_ALLOCATED, rows
