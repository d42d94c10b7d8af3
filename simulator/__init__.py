"""Program to predicted timeline: a discrete-event engine on SimPy."""

from simulator.deadlock import Deadlock
from simulator.engine import simulate
from simulator.steady import simulate_step

__all__ = ["Deadlock", "simulate", "simulate_step"]
