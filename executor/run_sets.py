"""One rank's part of a job on each kernel set; `executor.ranks` starts the ranks."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from executor.execute import execute
from executor.job import DifferentJobs, Job, Measured, joined
from executor.peers import gathered
from executor.reference_run import Case, Run, run_rank, worst_error
from executor.transport import Gloo, Transport, in_process
from executor.watchdog import Watchdog
from schedules.program import Begin, End, Program
from schedules.split import split_batch

if TYPE_CHECKING:
    from executor.host_probe import Prober
    from executor.production import Production
    from executor.production_setup import Session


def run_job(job: Job, rank: int, watchdog: Watchdog | None) -> Measured:
    """This rank's run; all ranks return the same. ExecutorError in one line."""
    digests = gathered(job.digest)
    if len(set(digests)) > 1:
        raise DifferentJobs(f"ranks were started with different programs: {digests}")
    if job.kernels == "reference":
        return _reference(job, rank)
    return _on_gpu(job, rank, watchdog)


def _reference(job: Job, rank: int) -> Measured:
    """One run in host order, its result compared with the plain model's."""
    torch.set_num_threads(1)
    cuts = split_batch(job.batch)[2]
    case = Case(
        job.deployment.model,
        job.batch,
        job.routing,
        cuts,
        layers=job.layers,
        seed=job.seed,
        fusion=job.deployment.fusion,
    )
    alone = job.deployment.ep_size == 1
    transport: Transport = in_process(1)[0] if alone else Gloo()
    result = run_rank(case, job.program, rank, transport, Run(timeout_s=60.0))
    assert result.timeline is not None
    error = worst_error([result.output], [case.expected()[rank]])
    if isinstance(transport, Gloo):
        dist.barrier()
        transport.close()
    timelines = gathered(result.timeline)
    longest = max(t.makespan_ns for t in timelines)
    return Measured(joined(timelines), (longest,), max(gathered(error)))


def _on_gpu(job: Job, rank: int, watchdog: Watchdog | None) -> Measured:
    """Makespans of plain repeats, with probes of the host before, after and, where no clock has to settle,
    between them; then the spans of one run with events."""
    from executor.cuda import device_facts
    from executor.host_probe import of_slowest, settles
    from executor.production_setup import require_memory

    beat = _Beat(watchdog)
    require_memory(job.program, rank)
    session, kernels, prober = _opened(job, rank, beat)
    eager = _without_graphs(job)
    for _ in range(2):
        execute(eager, kernels, rank=rank)
    execute(job.program, kernels, rank=rank)
    probes = [prober.probe()]
    beat.bounded = True
    makespans, clocks = [], []
    for repeat in range(job.repeats):
        if repeat and not settles(job.batch):
            probes.append(prober.probe())
        execute(job.program, kernels, rank=rank)
        makespans.append(kernels.makespan_ns)
        clocks.append([asdict(sample) for sample in session.clocks.samples[-1:]])
    probes.append(prober.probe())
    kernels.spans = "events"
    beat.bounded = False
    timeline = execute(eager, kernels, rank=rank)
    slowest = tuple(max(times) for times in zip(*gathered(makespans), strict=True))
    facts = dict(device_facts()) | {
        "gemm": session.gemm.version,
        "clocks": gathered(clocks),
        "spans_makespan_ns": max(gathered(kernels.makespan_ns)),
    }
    whole = replace(joined(gathered(timeline)), host_probes=of_slowest(probes))
    return Measured(whole, slowest, facts=facts)


def _opened(job: Job, rank: int, beat: _Beat) -> tuple[Session, Production, Prober]:
    """The session and the kernels of the job's set, and the prober of the host beside it."""
    from executor.host_probe import PREFILL_TOKENS, open_prober
    from executor.sessions import Sessions

    assert job.kernels in ("production", "triton")
    sessions = Sessions(
        rank,
        job.deployment.ep_size,
        dist.group.WORLD,
        job.deployment.a2a.num_sms,
        job.seed,
        beat,
        job.kernels,
        max(*job.batch.tokens, PREFILL_TOKENS),
    )
    session = sessions.of(job.deployment)
    kernels = sessions.kernel_set(
        session,
        job.batch,
        job.routing,
        layers=job.layers,
        flush=job.flush,
        deadline_s=240.0,
        poison=False,
    )
    return session, kernels, open_prober(sessions, job.deployment, job.batch.phase)


class _Beat:
    """Tells the watchdog, once nothing is compiled any more."""

    def __init__(self, watchdog: Watchdog | None) -> None:
        self._watchdog = watchdog
        self.bounded = False

    def __call__(self, what: str) -> None:
        if self._watchdog is not None:
            (self._watchdog.beat if self.bounded else self._watchdog.pause)(what)


def _without_graphs(job: Job) -> Program:
    """The program with its graph regions taken out: events cannot bracket ops inside a graph."""
    classes = tuple(
        replace(
            cls,
            steps=tuple(
                step
                for step in cls.steps
                if not (isinstance(step, Begin | End) and step.kind == "graph")
            ),
        )
        for cls in job.program.classes
    )
    return replace(job.program, classes=classes)
