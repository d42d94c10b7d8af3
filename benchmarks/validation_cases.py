"""The whole-program cases: what each is, and its program.

`validation_cases.yaml` holds those that earlier profiles were compared with, `validation_unseen.yaml`
those that were drawn by a seed and predicted before anybody measured them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from models.deployment import Batch, Deployment
from models.machine import Machine
from models.routing import Routing
from scenarios import load
from scenarios.resolve import resolve
from schedules.builders import build
from schedules.program import Program

CASES = Path(__file__).with_name("validation_cases.yaml")
UNSEEN = Path(__file__).with_name("validation_unseen.yaml")
LAYERS = 4
SCENARIO = "deepseek-v3-h200-ep2-{phase}"
RANKS = 2


@dataclass(frozen=True)
class Group:
    """Cases that share a batch: one schedule each, the first one is what gains are over."""

    name: str
    deployment: Deployment
    batch: Batch
    routing: Routing
    launch: str | None
    schedules: tuple[str, ...]
    layers: int

    @property
    def ranks(self) -> int:
        """GPUs that it runs on."""
        return self.deployment.ep_size

    @property
    def overlapped(self) -> tuple[str, ...]:
        """Schedules that run communication beside compute on purpose."""
        return tuple(name for name in self.schedules if name[:3] in ("tbo", "sbo"))

    def program(self, schedule: str, *, eager: bool = False) -> Program:
        """The program of one schedule; `eager` without its CUDA graph."""
        name, at, cap = schedule.partition("@")
        return build(
            name,
            self.deployment,
            self.batch,
            self.routing,
            layers=self.layers,
            fold=False,
            launch="eager" if eager or self.launch == "eager" else None,
            sm_cap=int(cap) if at else None,
            allow_refused=True,
        )

    def on(self, machine: Machine) -> Group:
        """The same group on another machine."""
        return replace(self, deployment=replace(self.deployment, machine=machine))


def drawn(path: Path) -> bool:
    """Whether a seed drew the file's groups, so that nobody has chosen them."""
    return "seed" in _content(path)


def groups(path: Path = CASES) -> Iterator[Group]:
    """All groups of the file."""
    content = _content(path)
    for entry in content["groups"]:
        yield _group(entry, content["layers"])


def _content(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    return content


def _group(entry: dict[str, Any], layers: int) -> Group:
    settings = []
    if entry["phase"] == "prefill":
        settings += [
            f"phase.prefill.tokens_per_rank={entry['tokens']}",
            f"phase.prefill.sequence_tokens={entry['sequence']}",
            f"a2a.num_sms={entry['num_sms']}",
        ]
    else:
        settings += [
            f"phase.decode.batch_per_rank={entry['tokens']}",
            f"phase.decode.kv_tokens={entry['kv']}",
        ]
    ranks = entry.get("ranks", RANKS)
    if ranks != RANKS:
        settings += [f"parallel.ep={ranks}", f"parallel.attention_dp={ranks}"]
    if "alpha" in entry:
        settings += ["routing.distribution=power_law", f"routing.alpha={entry['alpha']}"]
    resolved = resolve(load(SCENARIO.format(phase=entry["phase"]), settings))
    return Group(
        entry["name"],
        resolved.deployment,
        resolved.batch,
        resolved.routing,
        entry.get("launch"),
        tuple(entry["schedules"]),
        layers,
    )
