"""Program to predicted timeline: a discrete-event engine on SimPy."""

from simulator.deadlock import Deadlock
from simulator.engine import simulate

__all__ = ["Deadlock", "simulate"]
