"""Clock and power of a GPU while a run is on it: a time without them cannot be compared."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class ClockSample:
    """SM clock in MHz, board power in W (the driver's average over about a second), temperature."""

    sm_mhz: int
    power_w: float
    celsius: int


class ClockLog:
    """Samples of one GPU through NVML; empty where pynvml is missing or refuses."""

    def __init__(self, device: int) -> None:
        self.samples: list[ClockSample] = []
        self._nvml: ModuleType | None = None
        self._handle: Any = None
        try:
            nvml = import_module("pynvml")
        except ImportError:
            return
        try:
            nvml.nvmlInit()
            self._handle = nvml.nvmlDeviceGetHandleByIndex(device)
        except nvml.NVMLError:
            return
        self._nvml = nvml

    def sample(self) -> None:
        """Take one sample now, while the GPU is busy."""
        if self._nvml is None:
            return
        nvml, handle = self._nvml, self._handle
        self.samples.append(
            ClockSample(
                int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
                nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            )
        )
