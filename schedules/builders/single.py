"""Schedules that keep the batch whole: sequential, baseline, single-batch overlap, a user's lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from models.deployment import LayerKernels
from models.layer import layer_kernels
from models.sglang_rules import Refused
from models.sglang_sbo import OverlapArgs, SboFlags, overlap_args
from schedules.builders.assemble import ClassSteps, assemble, transfers_of
from schedules.builders.classes import rank_classes
from schedules.builders.layer_steps import (
    catalogue_of,
    drop_idle_streams,
    expand,
    honest,
    on_one_stream,
    ranks_key,
)
from schedules.builders.placing import Place, flow_of, handed_on, put
from schedules.builders.request import Request
from schedules.builders.whole_step import first_layer, step_begin, step_end
from schedules.program import Launch, Program, Signal, Step
from schedules.stream_lines import parse_stream_lines


@dataclass(frozen=True)
class LayerPlan:
    """One layer of a schedule: its stream lines (or letter runs), named SM budgets, whether all of it
    runs on one stream, and the SM split when combine overlaps."""

    entries: Sequence[str]
    one_stream: bool = False
    args: OverlapArgs | None = None

    @property
    def budgets(self) -> Mapping[str, int]:
        """SM budgets that lines may name."""
        if self.args is None:
            return {}
        return {"comp": self.args.compute_sms, "comm": self.args.comm_sms}


def sequential_plan(request: Request) -> LayerPlan:
    """One stream, nothing overlaps."""
    return LayerPlan(request.rules.layers["sequential"], one_stream=True)


def baseline_plan(request: Request) -> LayerPlan:
    """Every flag off: the shared expert runs beside routing and routed experts."""
    return LayerPlan(request.rules.layers["baseline"])


def sbo_plan(request: Request, variant: str) -> LayerPlan:
    """A variant of single-batch overlap, with the SM split of the device that selects it; `Refused`
    in normal mode, whose exchanges have no halves to overlap."""
    rules, rule = request.rules, request.rules.sbo.variants[variant]
    if not request.low_latency:
        raise Refused(rules.refusal("sbo.normal_mode"))
    flags = SboFlags(
        combine_down=rule.signals,
        combine_shared=rule.blackwell and not rule.outside,
        dispatch_shared=not rule.blackwell,
    )
    args = overlap_args(
        rules,
        flags,
        blackwell=rule.blackwell,
        num_sms=request.deployment.machine.num_sms,
        local_experts=request.deployment.slots_per_rank,
        static_tokens=_static_tokens(request),
        env_comm_sms=request.env_comm_sms,
    )
    return LayerPlan(rule.layer, args=args)


def lines_plan(request: Request) -> LayerPlan:
    """A user's own stream lines of one layer."""
    lines = request.lines or ()
    return LayerPlan(lines.split("\n") if isinstance(lines, str) else lines)


def build_single(request: Request, plan: LayerPlan) -> Program:
    """The program of a plan: the same steps for every layer and class, with each class's work."""
    routing, batch = request.dispatched, request.batch

    def kernels(rank: int) -> LayerKernels:
        return layer_kernels(request.deployment, batch, routing, rank)

    classes = rank_classes(request.fold, batch, routing, lambda r: ranks_key({"": kernels(r)}))
    built: list[ClassSteps] = []
    signals: list[Signal] = []
    examples: list[LayerKernels] = []
    for index, ranks in enumerate(classes):
        layer = kernels(ranks.example)
        steps = _layer_steps(request, plan, layer)
        suffix = f".c{index}" if len(classes) > 1 else ""
        one = _class_steps(request, ranks.example, layer, steps, suffix)
        built.append(one)
        examples.append(layer)
        signals += _signals(request, plan, one, ranks.example)
    transfers = {"": transfers_of(request.deployment, routing, examples[0])}
    return assemble(request, [item.ranks for item in classes], built, transfers, signals)


def _layer_steps(request: Request, plan: LayerPlan, layer: LayerKernels) -> tuple[Step, ...]:
    halves = request.rules.halves_of(request.deployment.a2a.backend, request.deployment.a2a.mode)
    lines = expand(plan.entries, halves)
    steps = parse_stream_lines(lines, catalogue_of(layer), plan.budgets).steps
    steps = on_one_stream(steps) if plan.one_stream else drop_idle_streams(steps)
    return honest(_with_grain(request, plan, steps), request.deployment)


def _with_grain(request: Request, plan: LayerPlan, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The raising kernel with the rows that one of its signals stands for."""
    signal = plan.args.signal if plan.args else None
    if signal is None or plan.args is None:
        return steps
    per_block = request.rules.sbo.block_rows
    if signal.numel == request.deployment.slots_per_rank:
        per_block = max(per_block, _static_tokens(request))
    return tuple(
        replace(step, op=replace(step.op, work=replace(step.op.work, block_rows=per_block)))
        if isinstance(step, Launch) and step.op.raises
        else step
        for step in steps
    )


def _class_steps(
    request: Request, rank: int, layer: LayerKernels, steps: tuple[Step, ...], suffix: str
) -> ClassSteps:
    built = ClassSteps()
    inherited = step_begin(request, rank, built)
    flow, start = flow_of(layer), first_layer(request)
    for index in range(start, start + request.layers):
        place = Place(index, flow, inherited, signal_suffix=suffix)
        built.steps.extend(put(steps, place))
        built.own(place, layer.buffers)
        inherited = handed_on(place)
    step_end(request, rank, built, inherited)
    return built


def _signals(request: Request, plan: LayerPlan, built: ClassSteps, rank: int) -> tuple[Signal, ...]:
    """One signal for every layer: a block for every expert, or for every started run of rows."""
    raised = [s.op.raises for s in built.steps if isinstance(s, Launch) and s.op.raises]
    if plan.args is None or plan.args.signal is None:
        return ()
    rows = request.dispatched.local_expert_tokens()[rank]
    threshold = plan.args.threshold
    blocks = len(rows)
    if plan.args.signal.numel != request.deployment.slots_per_rank:
        blocks = int(sum(-(-int(count) // plan.args.block_rows) for count in rows))
        columns = request.rules.sbo.down_gemm_block_n
        threshold = -(-request.deployment.model.hidden_size // columns)
    return tuple(Signal(name, max(blocks, 1), threshold) for name in raised)


def _static_tokens(request: Request) -> int:
    """Rows that the masked layout holds for each local expert."""
    a2a = request.deployment.a2a
    return a2a.max_dispatch_tokens_per_rank * request.deployment.ep_size
