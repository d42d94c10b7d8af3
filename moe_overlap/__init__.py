"""Predict, run and compare overlap schedules of Mixture-of-Experts inference.

    import moe_overlap as mo
    result = mo.compare(mo.load("deepseek-v3-h100-ep72-decode", ["phase.decode.batch_per_rank=128"]))
    print(result.document()["best"])

Names are imported when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moe_overlap.comparison import Comparison, compare
    from moe_overlap.prediction import build, simulate
    from scenarios import Scenario, ScenarioError, library, load
    from scenarios.resolve import Resolved, resolve

__version__ = "0.1.0"
__all__ = [
    "Comparison",
    "Resolved",
    "Scenario",
    "ScenarioError",
    "build",
    "compare",
    "library",
    "load",
    "resolve",
    "simulate",
]

_HOMES = {
    "Comparison": "moe_overlap.comparison",
    "compare": "moe_overlap.comparison",
    "build": "moe_overlap.prediction",
    "simulate": "moe_overlap.prediction",
    "Scenario": "scenarios",
    "ScenarioError": "scenarios",
    "library": "scenarios",
    "load": "scenarios",
    "Resolved": "scenarios.resolve",
    "resolve": "scenarios.resolve",
}
_PACKAGES = ("models", "schedules", "scenarios", "simulator", "executor", "viz")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _check_packages() -> None:
    """The packages beside this one have plain names; another `models` first on the path is an error."""
    root = Path(__file__).resolve().parent.parent
    for package in _PACKAGES:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise ImportError(f"the package {package!r} of moe-overlap is missing from {root}")
        origin = Path(spec.origin).resolve()
        if origin.parent.parent != root:
            raise ImportError(
                f"{origin} shadows the package {package!r} of moe-overlap, which is in {root}; "
                "rename it, or run from another folder"
            )


_check_packages()
