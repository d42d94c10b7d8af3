"""What comes of one schedule: a refusal with its reason, or a timeline with its figures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from models.sglang_rules import Refusal
from models.sglang_rules import Refused as RuleRefused
from moe_overlap.answers.variation import halved
from moe_overlap.fidelity import Fidelity, fold_error
from moe_overlap.figures import Predicted, figures_of
from moe_overlap.memory_fit import fit_of
from moe_overlap.prediction import flaw_of, launch_of, program_of, refusal_of, variant_of
from moe_overlap.row import Row
from moe_overlap.uncertain import phase_of
from scenarios.resolve import Resolved, ScheduleChoice
from schedules.builders import Fold
from schedules.program import Program
from simulator import Deadlock, simulate, simulate_step


@dataclass
class Programs:
    """The programs of one schedule by number of MoE layers, each built once."""

    resolved: Resolved
    choice: ScheduleChoice
    allow_refused: bool
    built: dict[int, Program] = field(default_factory=dict)

    def __call__(self, layers: int) -> Program:
        """The whole step with so many MoE layers."""
        if layers not in self.built:
            self.built[layers] = self.folded(True, layers, whole_step=True)
        return self.built[layers]

    def folded(self, fold: Fold, layers: int, *, whole_step: bool) -> Program:
        """The program under another folding of ranks."""
        return program_of(
            self.resolved,
            self.choice,
            layers=layers,
            whole_step=whole_step,
            fold=fold,
            allow_refused=self.allow_refused,
        )

    def smaller(self) -> tuple[Resolved, Program] | None:
        """Half the batch and its program of two layers; None where the schedule has none."""
        half = halved(self.resolved)
        if half is None:
            return None
        try:
            return half, replace(self, resolved=half, built={})(2)
        except RuleRefused:
            return None


def predict(
    resolved: Resolved, choice: ScheduleChoice, *, allow_refused: bool, fidelity: Fidelity = "auto"
) -> Row:
    """One row: refused by a rule, by memory, by lint or by the engine, else with its figures."""
    refused = refusal_of(resolved, choice)
    row = Row(choice.name, variant_of(resolved, choice), None, refused)
    if refused and not allow_refused:
        return row
    programs = Programs(resolved, choice, allow_refused)
    layers = resolved.deployment.model.num_moe_layers
    try:
        sample = programs(min(2, layers))
    except RuleRefused:  # what not even --allow-refused can build
        return row
    row = _with_memory(programs, row, sample)
    if row.refused and not allow_refused:
        return row
    flaw = flaw_of(sample)
    if flaw is not None:
        return replace(row, refused=flaw)
    return _simulated(resolved, row, programs, fidelity)


def _with_memory(programs: Programs, row: Row, program: Program) -> Row:
    fit = fit_of(programs.resolved, program, programs.smaller())
    return replace(
        row,
        launch=launch_of(program),
        refused=row.refused or fit.refusal,
        memory_gib=fit.needed.gib,
        max_batch_per_rank=fit.max_batch,
    )


def _simulated(resolved: Resolved, row: Row, programs: Programs, fidelity: Fidelity) -> Row:
    machine, layers = resolved.deployment.machine, resolved.deployment.model.num_moe_layers
    try:
        step = simulate_step(programs, machine, layers)
        program = programs(step.simulated)
        figures = figures_of(resolved, Predicted(program, programs(1), step))
        if row.launch == "eager" and fidelity != "fast":
            phase = phase_of(program, step.machine, step.timeline, figures.layer_ns)
            figures = replace(figures, phase=phase)
        if fidelity == "full":
            figures = replace(
                figures, step_ns=figures.step_ns + _unfolded_ns(programs, layers) - step.ns
            )
        elif fidelity == "auto":
            figures = replace(figures, shortcuts=_shortcuts(programs, layers))
    except Deadlock as deadlock:
        return replace(row, refused=Refusal(rule="deadlock", reason=str(deadlock), evidence="run"))
    error = None if fidelity == "fast" else figures.shortcuts
    return replace(
        row,
        program=program,
        timeline=step.timeline,
        figures=figures,
        shortcut_error=error,
        load_off=step.load_off,
    )


def _unfolded_ns(programs: Programs, layers: int) -> int:
    """Every rank by itself, through all layers."""
    program = programs.folded(False, layers, whole_step=True)
    machine = programs.resolved.deployment.machine
    return simulate(program, machine, fold=False, counters=False).makespan_ns


def _shortcuts(programs: Programs, layers: int) -> float:
    deployment = programs.resolved.deployment
    return fold_error(
        lambda fold: programs.folded(fold, min(2, layers), whole_step=False),
        deployment.machine,
        deployment.ep_size,
    )
