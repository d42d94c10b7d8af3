"""Whether a profile speaks of the GPU that a question is about."""

from __future__ import annotations

from pathlib import Path

from models.errors import InputError
from models.machine import Machine
from models.profile import load_machine


def load_same_gpu(profile: str | Path, wanted: Machine, *, other_gpu: bool = False) -> Machine:
    """The machine of `profile`, to stand in for `wanted`. InputError when their GPUs have different
    names, unless `other_gpu`."""
    given = load_machine(profile)
    if given.gpu != wanted.gpu and not other_gpu:
        raise InputError(
            str(profile),
            "gpu.name",
            given.gpu,
            f"{wanted.gpu!r}, the GPU of {wanted.name!r}; or --other-gpu to take it all the same",
        )
    return given
