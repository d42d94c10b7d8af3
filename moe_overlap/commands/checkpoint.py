"""`moe-overlap checkpoint`: does this checkpoint's shared expert fit a slot of the grouped GEMM?"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moe_overlap.commands.arguments import JsonOption

if TYPE_CHECKING:
    from models.checkpoint import LayerVerdict, Report

DirArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="A folder with config.json and shards.")
]
PlanOption = Annotated[
    bool, typer.Option("--plan", help="Also print where every shared tensor goes.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="sm90, sm100, gfx950, mp31, ...")]
TpOption = Annotated[int, typer.Option("--tp", min=1, help="Ranks that share one expert.")]
EpOption = Annotated[int, typer.Option("--ep", min=1, help="Ranks that spread the experts.")]
A2AOption = Annotated[str, typer.Option("--a2a", help="All-to-all backend.")]


def checkpoint(
    folder: DirArgument,
    plan: PlanOption = False,
    device: DeviceOption = "sm90",
    tp: TpOption = 1,
    ep: EpOption = 1,
    a2a: A2AOption = "none",
    as_json: JsonOption = False,
) -> None:
    """Read a checkpoint's headers and say, layer by layer, whether its shared expert can be fused."""
    from models.checkpoint import inspect
    from models.checkpoint_config import Server
    from models.checkpoint_files import open_checkpoint
    from moe_overlap.output import print_json

    report = inspect(open_checkpoint(folder), Server(device, tp, ep, a2a))
    if as_json:
        print_json(_document(report, plan))
    else:
        _print(report, plan)


def _document(report: Report, plan: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema": 1,
        "format": report.format,
        "architecture": report.architecture,
        "tensors": report.num_tensors,
        "slot": report.routed_experts,
        "default": _decision(report.default),
        "enforced": _decision(report.enforced),
        "layers": [
            {
                "layer": layer.layer,
                "verdict": layer.verdict,
                "rule": layer.rule,
                "tensors": [{"name": f.tensor, "detail": f.detail} for f in layer.findings],
            }
            for layer in report.layers
        ],
    }
    if plan:
        document["plan"] = [
            {
                "tensor": move.name,
                "renamed": move.renamed,
                "parameter": move.parameter,
                "part": move.part,
                "stored": move.stored,
            }
            for move in report.moves
        ]
    return document


def _decision(decision: Any) -> dict[str, Any]:
    return {"outcome": decision.outcome, "rule": decision.rule, "reason": decision.reason}


def _print(report: Report, plan: bool) -> None:
    typer.echo(f"{report.architecture}, {report.format}, {report.num_tensors} tensors")
    for name, decision in (("default", report.default), ("enforced", report.enforced)):
        typer.echo(f"{name:<9} {decision.outcome} [{decision.rule}] {decision.reason}")
    typer.echo("")
    for key, run in groupby(report.layers, key=_same):
        layers = list(run)
        first, last = layers[0], layers[-1]
        where = f"layer {first.layer}" if first is last else f"layers {first.layer}-{last.layer}"
        typer.echo(f"{where}: {key[0]} [{key[1]}]")
        for finding in first.findings[: 3 if first.verdict == "fuses" else 8]:
            typer.echo(f"  {finding.tensor}: {finding.detail}")
        hidden = len(first.findings) - (3 if first.verdict == "fuses" else 8)
        if hidden > 0:
            typer.echo(f"  and {hidden} more")
    if plan:
        typer.echo(f"\nslot {report.routed_experts}:")
        for move in report.moves:
            typer.echo(f"  {move.name} ({move.stored})")
            typer.echo(f"    -> {move.renamed} -> {move.parameter}, part {move.part}")


def _same(layer: LayerVerdict) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Layers that are told together: the same verdict for tensors of the same kind."""
    kinds = tuple((f.tensor.rpartition(".")[2], f.detail) for f in layer.findings)
    return layer.verdict, layer.rule, kinds
