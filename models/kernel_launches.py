"""How a kernel set launches what a profile's libraries launch otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from models.errors import InputError, choices

_FOLDER = Path(__file__).with_name("library") / "kernel_sets"


def launches_of(kernels: str, source: str) -> Mapping[str, Mapping[str, Any]]:
    """Keys of `models.profile_schema.KernelKind` by kind of work, for the set called `kernels`; InputError
    for a set that the library does not hold, which `source` named."""
    known = {path.stem: path for path in _FOLDER.glob("*.yaml")}
    if kernels not in known:
        raise InputError(source, "kernels", kernels, choices(known, kernels))
    content: Mapping[str, Mapping[str, Any]] = YAML(typ="safe", pure=True).load(
        known[kernels].read_text(encoding="utf-8")
    )
    return content
