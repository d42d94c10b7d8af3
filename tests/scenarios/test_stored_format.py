"""A model's config says in which format its weights are stored; a prediction in another one is told."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scenarios import load
from scenarios.resolve import resolve
from tests.cli.conftest import run as run
from tests.models.checkpoint_cases import QUANTIZATION

Run = Callable[..., "subprocess.CompletedProcess[str]"]
LIBRARY = Path(__file__).parents[2] / "models" / "library" / "models"
# What a scenario may call the weights of a checkpoint: by their bits, FP8's scales aside.
SAME = {
    "bf16": "bf16",
    "fp8_block": "fp8_block",
    "fp8_tensor": "fp8_block",
    "nvfp4": "nvfp4",
    "ct_nvfp4": "nvfp4",
}


def config(folder: Path, stored: str) -> Path:
    values: dict[str, Any] = json.loads((LIBRARY / "deepseek-v3.json").read_text())
    del values["quantization_config"]
    quantization = QUANTIZATION[stored]
    values |= {"quantization_config": quantization} if quantization else {}
    values |= {"expert_dtype": "fp4"} if stored == "fp4_experts" else {}
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize("stored", QUANTIZATION)
def test_a_prediction_in_another_format_than_the_configs_is_told(
    tmp_path: Path, stored: str
) -> None:
    path = config(tmp_path, stored)
    for weights in ("bf16", "fp8_block", "nvfp4"):
        settings = [f"model={path}", f"quantization.weights={weights}", "hardware=gb200-nvl72"]
        note = resolve(load("tiny", settings)).format_note()
        if SAME.get(stored) == weights:
            assert note == ""
        else:
            assert f"quantization.weights is {weights}, {path} says" in note
            assert f"that is {SAME[stored]}" in note if stored in SAME else "none of bf16" in note


def test_only_a_chosen_format_of_a_library_model_is_not_told() -> None:
    assert (
        "none of bf16, fp8_block, nvfp4"
        in resolve(load("tiny", ["model=kimi-k2.5", "parallel.ep=16"])).format_note()
    )
    chosen = ["model=deepseek-v3", "quantization.weights=bf16"]
    assert resolve(load("tiny", chosen)).format_note() == ""
    assert resolve(load("tiny", ["model=deepseek-v3"])).format_note() == ""


def test_commands_tell_it(run: Run, tmp_path: Path) -> None:
    setting = f"model={{base: {config(tmp_path, 'bf16')}, num_layers: 4, first_k_dense: 1}}"
    told = "quantization.weights is fp8_block, "
    done = run("simulate", "tiny", "-s", "baseline", "--set", setting, "-o", "x.json")
    assert done.returncode == 0 and done.stderr.startswith(f"note: {told}")
    assert "says no quantization_config, which is bf16: that is bf16" in done.stderr
    document = json.loads(
        run("compare", "tiny", "--set", setting, "--json", "--fidelity", "fast").stdout
    )
    assert any(told in json.dumps(note) for note in document["notes"])
