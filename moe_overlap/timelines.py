"""Timelines from files of either kind: our own JSON, or a PyTorch profiler trace."""

from __future__ import annotations

from pathlib import Path

from moe_overlap.errors import Refused
from schedules.files import load_timeline, read_json
from schedules.timeline import Timeline

_TRACE_KEY = "traceEvents"


def read_timeline(path: Path) -> Timeline:
    """The timeline in a file; Refused (exit status 1) with file and key for anything else."""
    if path.is_dir():
        raise Refused(f"{path}: is a directory, a file is needed")
    try:
        if path.suffix == ".gz" or _TRACE_KEY in _keys(path):
            from viz.trace_import import import_trace

            return import_trace(path)
        return load_timeline(path)
    except ValueError as error:
        raise Refused(str(error)) from error


def _keys(path: Path) -> frozenset[str]:
    document = read_json(path)
    return frozenset(document) if isinstance(document, dict) else frozenset()
