"""The loop of a calibration: every rank measures the same tasks, and rank 0 decides which."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from executor.calibrate.plan import Task
from executor.calibrate.store import Record, Store
from executor.kernel_set import ExecutorError

Measure = Callable[[Task], Sequence[Record]]
Share = Callable[[object], object]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a calibration is, and what went wrong so far."""

    done: int
    total: int
    now: str
    failed: tuple[str, ...] = ()


def calibrate(
    tasks: Iterable[Task],
    measure: Measure,
    store: Store | None,
    *,
    share: Share,
    minutes: float,
    report: Callable[[Progress], None],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[str, ...]:
    """Measure what `store` does not hold yet, until done or out of time; names of failed tasks.

    Every rank calls this with the same tasks. Only rank 0 has a store; `share` gives rank 0's value to
    every rank, and is called once before each task, so that all ranks run the same exchanges. A task
    that fails on this rank with ExecutorError is skipped and named; what leaves a rank hanging is for
    the watchdog.
    """
    end = clock() + 60.0 * minutes
    wanted = tuple(tasks)
    hopeless = store.hopeless if store is not None else frozenset()
    failed = [f"{task.name}: ended its process" for task in wanted if task.name in hopeless]
    for number, task in enumerate(wanted):
        if not share(store is not None and _wanted(task, store) and clock() < end):
            continue
        if store is not None:
            store.begin(task.name)
        report(Progress(number, len(wanted), task.name, tuple(failed)))
        try:
            records = measure(task)
        except ExecutorError as error:
            failed.append(f"{task.name}: {error}")
            continue
        if store is not None:
            store.add(task.name, records)
    report(Progress(len(wanted), len(wanted), "", tuple(failed)))
    return tuple(failed)


def _wanted(task: Task, store: Store) -> bool:
    return task.name not in store.done and task.name not in store.hopeless
