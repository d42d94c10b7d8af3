"""One builder per schedule: names and deployments to programs.

A schedule is written as stream lines or as an operation list with yields (`models/rules` holds those
of SGLang, in the grammar that users write their own in); the builders put each class of ranks' work
into it, layer by layer.
"""

from schedules.builders.request import Fold
from schedules.builders.schedule import (
    build,
    build_request,
    notes,
    refusal,
    schedule_names,
    variant,
)

__all__ = ["Fold", "build", "build_request", "notes", "refusal", "schedule_names", "variant"]
