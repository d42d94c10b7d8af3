"""Lint: what is wrong with a program, found from the program alone.

`lint(program)` checks names, events, regions, accesses, exchanges and cycles; `RULES` lists every
rule with its severity. It uses what CUDA does: a wait stands for the latest record of its event
before it in host order, and a wait without such a record does nothing.
"""

from __future__ import annotations

from dataclasses import replace

from schedules.lint.clocks import clocks_of
from schedules.lint.cycles import cycle_findings
from schedules.lint.events import event_findings
from schedules.lint.exchanges import buffer_findings, exchange_findings
from schedules.lint.finding import RULES, Finding, Severity
from schedules.lint.names import name_findings
from schedules.lint.regions import region_findings
from schedules.lint.waits import wait_findings
from schedules.program import Program

__all__ = ["RULES", "Finding", "Severity", "lint"]


def lint(program: Program) -> tuple[Finding, ...]:
    """All findings, errors first, then in order of rank and step."""
    exchanges = {exchange.name: exchange for exchange in program.exchanges}
    found = list(name_findings(program))
    program = replace(program, classes=tuple(cls for cls in program.classes if cls.ranks))
    found += [*exchange_findings(program), *cycle_findings(program)]
    for cls in program.classes:
        found += event_findings(cls)
        found += region_findings(cls)
        clocks = clocks_of(cls)
        found += wait_findings(cls, exchanges, clocks)
        found += buffer_findings(cls, exchanges, clocks)
    weight = {"error": 0, "warning": 1, "info": 2}
    nowhere = -1
    return tuple(
        sorted(
            found,
            key=lambda item: (
                weight[item.severity],
                nowhere if item.rank is None else item.rank,
                nowhere if item.step is None else item.step,
            ),
        )
    )
