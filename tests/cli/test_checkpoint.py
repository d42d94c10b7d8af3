"""`moe-overlap checkpoint`: verdicts in text and JSON, the plan, and exit status 1 with one message."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Protocol

from tests.models.checkpoint_cases import bf16, config_of, expert_tensors, write


class Run(Protocol):
    def __call__(self, *arguments: str) -> CompletedProcess[str]: ...


def test_equal_layers_are_told_together(run: Run, tmp_path: Path) -> None:
    folder = write(tmp_path / "c", config_of("fp8_block"), expert_tensors("fp8_block"))
    done = run("checkpoint", str(folder), "--plan")
    assert done.returncode == 0, done.stderr
    assert "layers 1-2: fuses [slot.fits]" in done.stdout
    assert "experts.4.gate_proj.weight -> model.layers.1.mlp.experts.w13_weight" in done.stdout


def test_json_names_rule_and_tensors(run: Run, tmp_path: Path) -> None:
    tensors = expert_tensors("fp8_block", bf16)
    folder = write(tmp_path / "c", config_of("fp8_block"), tensors)
    document = json.loads(run("checkpoint", str(folder), "--json").stdout)
    layer = document["layers"][0]
    assert (layer["verdict"], layer["rule"]) == ("would load and serve garbage", "loader.cast")
    assert any(
        entry["name"].endswith("shared_experts.up_proj.weight") for entry in layer["tensors"]
    )
    assert document["default"]["rule"] == "deepseek.config"


def test_a_folder_that_is_no_checkpoint_ends_with_one_message(run: Run, tmp_path: Path) -> None:
    done = run("checkpoint", str(tmp_path))
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith("error: ") and "config.json" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_device_is_refused(run: Run, tmp_path: Path) -> None:
    folder = write(tmp_path / "c", config_of("bf16"), expert_tensors("bf16"))
    done = run("checkpoint", str(folder), "--device", "h200")
    assert done.returncode == 1 and "sm90" in done.stderr
