"""Figures of merit of a timeline, each defined once (`docs/figures-of-merit.md`), and the bounds that
no timeline of a program beats."""

from schedules.merit.bounds import Bounds, bounds
from schedules.merit.bubbles import BUBBLES, StreamTime, stream_times
from schedules.merit.critical_path import PathItem, critical_path
from schedules.merit.exposed import (
    exposed_by_layer_ns,
    exposed_intervals,
    exposed_ns,
    is_communication,
)
from schedules.merit.shares import (
    cost_shares,
    kind_ns,
    sm_resident_fraction,
    sm_spinning_fraction,
)
from schedules.merit.slack import slack_ns
from schedules.merit.steady import Steady, layer_ns, steady

__all__ = [
    "BUBBLES",
    "Bounds",
    "PathItem",
    "Steady",
    "StreamTime",
    "bounds",
    "cost_shares",
    "critical_path",
    "exposed_by_layer_ns",
    "exposed_intervals",
    "exposed_ns",
    "is_communication",
    "kind_ns",
    "layer_ns",
    "slack_ns",
    "sm_resident_fraction",
    "sm_spinning_fraction",
    "steady",
    "stream_times",
]
