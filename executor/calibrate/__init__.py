"""Measures what a hardware profile states: kernels in sequence, SM caps, exchanges, interference."""
