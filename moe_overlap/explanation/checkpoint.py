"""Figure 6: which tensors of a checkpoint move to the slot, and whether they fit."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from models.checkpoint import Report, inspect
from models.checkpoint_config import Server
from models.checkpoint_files import open_checkpoint
from models.fusion import Decision
from models.stored_format import quant_method, weights_note
from scenarios.resolve import Resolved


def checkpoint_fit(resolved: Resolved, folder: Path) -> dict[str, Any]:
    """The verdict of every MoE layer of the checkpoint, served as the scenario says, and the moves of the
    first layer. InputError names file and key of what cannot be read."""
    deployment = resolved.deployment
    major, minor = deployment.machine.compute_capability
    server = Server(f"sm{10 * major + minor}", 1, deployment.ep_size, deployment.a2a.backend)
    checkpoint = open_checkpoint(folder)
    report = inspect(checkpoint, server)
    method = quant_method({"quantization_config": checkpoint.quantization}, checkpoint.config)
    return {
        "folder": folder.name,
        "format": report.format,
        "note": weights_note(deployment.quantization.weights, method, folder.name),
        "architecture": report.architecture,
        "tensors": report.num_tensors,
        "slot": report.routed_experts,
        "default": _decision(report.default),
        "enforced": _decision(report.enforced),
        "layers": _layers(report),
        "moves": _moves(report),
    }


def _decision(decision: Decision) -> dict[str, str]:
    return {"outcome": decision.outcome, "rule": decision.rule, "reason": decision.reason}


def _layers(report: Report) -> list[dict[str, Any]]:
    """Runs of layers with the same verdict by the same rule, with the first one's findings."""
    found = []
    for (verdict, rule), run in groupby(report.layers, key=lambda one: (one.verdict, one.rule)):
        layers = list(run)
        findings = [{"tensor": f.tensor, "detail": f.detail} for f in layers[0].findings]
        numbers = [layers[0].layer, layers[-1].layer]
        found.append({"layers": numbers, "verdict": verdict, "rule": rule, "findings": findings})
    return found


def _moves(report: Report) -> list[dict[str, str]]:
    """Where the shared tensors of the first layer go."""
    blocks = [move.name.split(".shared_expert")[0] for move in report.moves]
    return [
        {
            "tensor": move.name,
            "renamed": move.renamed,
            "parameter": move.parameter,
            "part": move.part,
            "stored": move.stored,
        }
        for move, block in zip(report.moves, blocks, strict=True)
        if block == blocks[0]
    ]
