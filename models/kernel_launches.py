"""How a kernel set launches what a profile's libraries launch otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

_FOLDER = Path(__file__).with_name("library") / "kernel_sets"


def launches_of(kernels: str) -> Mapping[str, Mapping[str, Any]]:
    """Keys of `models.profile_schema.KernelKind` by kind of work, for the set called `kernels`; none for
    a set of which nothing is written."""
    path = _FOLDER / f"{kernels}.yaml"
    if not path.is_file():
        return {}
    content: Mapping[str, Mapping[str, Any]] = YAML(typ="safe", pure=True).load(
        path.read_text(encoding="utf-8")
    )
    return content
