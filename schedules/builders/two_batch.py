"""Two-batch overlap: two children take turns at the yields of an operation list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from models.deployment import LayerKernels
from models.kv_cache import CACHES
from models.layer import layer_kernels
from models.sglang_tbo import deep_gemm_sms, tbo_strategy
from schedules.builders.assemble import ClassSteps, assemble, transfers_of
from schedules.builders.classes import rank_classes
from schedules.builders.layer_steps import (
    LETTERS,
    capped,
    catalogue_of,
    honest,
    letter_lines,
    ranks_key,
)
from schedules.builders.placing import Flow, Place, flow_of, handed_on, put
from schedules.builders.request import Request
from schedules.builders.turns import CHILDREN, issue_order
from schedules.builders.whole_step import Inherited, first_layer, step_begin, step_end
from schedules.op_list import OpList, join_layers, parse_op_list
from schedules.program import Begin, End, HostWork, Launch, Program, Step
from schedules.stream_lines import parse_stream_lines


@dataclass(frozen=True)
class TwoBatchPlan:
    """The stages of one layer, how many stages child A runs ahead, and the SM limit of DeepGEMM."""

    stages: OpList
    delta: int
    gemm_sms: int | None


@dataclass(frozen=True)
class ChildSteps:
    """One child on one rank: its steps by letter, their flow, and what it inherits at each layer."""

    steps: Mapping[str, tuple[Step, ...]]
    flow: Flow
    inherited: tuple[Inherited, ...]


def tbo_plan(request: Request) -> TwoBatchPlan:
    """The operation list that SGLang has for the model's layer class and the forward mode; `Refused`
    when there is none."""
    rules, deployment = request.rules, request.deployment
    layer_class = rules.layer_class(deployment.model.architecture)
    strategy = tbo_strategy(rules, layer_class, request.mode, deployment.a2a.backend)
    stages = parse_op_list(strategy.ops, rules.tbo.operations)
    limit = deep_gemm_sms(
        strategy,
        num_sms=deployment.machine.num_sms,
        comm_sms=deployment.a2a.num_sms,
        hip=False,
    )
    return TwoBatchPlan(stages, strategy.delta, _cap(request, limit))


def ops_plan(request: Request) -> TwoBatchPlan:
    """A user's own operation list. GrammarError marks a fault in it; ValueError names letters whose
    kernels it leaves out or launches twice."""
    stages = parse_op_list(request.ops or "", (*LETTERS, *request.rules.tbo.lines))
    layer = layer_kernels(request.deployment, request.whole, request.dispatched, 0)
    steps = [step for found in _letter_steps(request, stages, layer).values() for step in found]
    launched = Counter(step.op.name for step in steps if isinstance(step, Launch))
    for fault, wrong in (("leaves out", 0), ("launches twice", 2)):
        letters = [
            letter
            for letter, group in layer.groups.items()
            if any(min(launched[kernel.name], 2) == wrong for kernel in group)
        ]
        if letters:
            raise ValueError(f"operation list {request.ops!r} {fault} {', '.join(letters)}")
    return TwoBatchPlan(stages, request.delta or 0, _cap(request, None))


def build_two_batch(request: Request, plan: TwoBatchPlan) -> Program:
    """The program of a plan: stages of both children in the order of their turns."""
    children = request.children

    def kernels(rank: int) -> dict[str, LayerKernels]:
        return {
            child.name: layer_kernels(request.deployment, child.batch, child.routing, rank)
            for child in children
        }

    classes = rank_classes(
        request.fold, request.whole, request.dispatched, lambda rank: ranks_key(kernels(rank))
    )
    layers = [kernels(ranks.example) for ranks in classes]
    built = [
        _class_steps(request, plan, ranks.example, layer)
        for ranks, layer in zip(classes, layers, strict=True)
    ]
    transfers = {
        child.name: transfers_of(request.deployment, child.routing, layers[0][child.name])
        for child in children
    }
    return assemble(request, [item.ranks for item in classes], built, transfers)


def _class_steps(
    request: Request,
    plan: TwoBatchPlan,
    rank: int,
    layers: Mapping[str, LayerKernels],
) -> ClassSteps:
    built = ClassSteps()
    if request.whole_step:
        built.prologue.append(HostWork("split_metadata"))
        if request.deployment.a2a.collective:
            # Collectives of uneven length: the ranks tell each other their children's.
            built.prologue.append(HostWork("vote"))
    two_chunk = request.children[1].cuts[rank].two_chunk
    inherited = step_begin(request, rank, built)
    children = {
        name: _child(request, plan, name, layers[name], inherited, built) for name in CHILDREN
    }
    stages = join_layers(plan.stages, request.layers)
    start = first_layer(request)
    for name, index in issue_order(len(stages), plan.delta):
        child, region = children[name], f"{name}.{index}"
        built.steps.append(Begin("stage", region))
        for layer, letter in stages[index]:
            at = Place(start + layer, child.flow, child.inherited[layer], name, index)
            steps = put(child.steps[letter], at)
            if two_chunk and name == "b":
                steps = iter([_after_the_other_piece(step, at) for step in steps])
            built.steps.extend(steps)
        built.steps.append(End("stage", region))
    step_end(request, rank, built, _merged(children, start + request.layers - 1))
    return built


def _child(
    request: Request,
    plan: TwoBatchPlan,
    name: str,
    layer: LayerKernels,
    inherited: Inherited,
    built: ClassSteps,
) -> ChildSteps:
    steps = {
        letter: honest(
            found if plan.gemm_sms is None else capped(found, plan.gemm_sms), request.deployment
        )
        for letter, found in _letter_steps(request, plan.stages, layer).items()
    }
    flow, start = flow_of(layer), first_layer(request)
    handed: list[Inherited] = []
    for index in range(start, start + request.layers):
        place = Place(index, flow, inherited, name)
        built.own(place, layer.buffers)
        handed.append(inherited)
        inherited = handed_on(place)
    return ChildSteps(steps, flow, tuple(handed))


def _letter_steps(
    request: Request, stages: OpList, layer: LayerKernels
) -> dict[str, tuple[Step, ...]]:
    """The steps of every letter of a list: as the list's own lines, the backend's halves, or on main."""
    a2a, own = request.deployment.a2a, request.rules.tbo.lines
    halves, catalogue = request.rules.halves_of(a2a.backend, a2a.mode), catalogue_of(layer)
    lines = {
        letter: own.get(letter) or letter_lines(letter, halves)
        for stage in stages
        for letter in stage
    }
    return {letter: parse_stream_lines(text, catalogue).steps for letter, text in lines.items()}


def _after_the_other_piece(step: Step, place: Place) -> Step:
    """Child B attends to the piece of its first sequence that child A cached in the same layer."""
    if not isinstance(step, Launch):
        return step
    others = tuple(
        f"L{place.layer}.{CHILDREN[0]}.{cache}"
        for cache in CACHES
        if f"{place.prefix}{cache}" in step.op.reads
    )
    return replace(step, op=replace(step.op, reads=(*step.op.reads, *others))) if others else step


def _merged(children: Mapping[str, ChildSteps], last: int) -> Inherited:
    """What comes after the last layer reads both children's results."""
    names = next(iter(children.values())).flow.written
    return {name: tuple(f"L{last}.{child}.{name}" for child in CHILDREN) for name in names}


def _cap(request: Request, limit: int | None) -> int | None:
    if request.sm_cap is None:
        return limit
    return request.sm_cap or None
