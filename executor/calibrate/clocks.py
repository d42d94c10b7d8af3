"""SM clock, power and throttling of this GPU while something is measured, and who else uses it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from types import TracebackType
from typing import Any

PERIOD_S = 0.02
# NVML's reasons for a lower clock, by bit.
THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the GPU: MHz, watts, degrees Celsius, NVML's bits of clock reasons, and the ids of
    other processes on it."""

    mhz: int
    watts: int
    celsius: int = 0
    reasons: int = 0
    others: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ClockState:
    """What the GPU did over a stretch of time; `throttled` names the reasons seen."""

    mhz: int
    mhz_low: int
    watts: int
    celsius: int
    throttled: tuple[str, ...]
    others: tuple[int, ...]


Reader = Callable[[], Reading]


def nvml_reader(device: int) -> Reader | None:
    """A reader of NVML's figures for CUDA device `device`; None where NVML is missing or refuses."""
    try:
        import pynvml  # type: ignore[import-not-found]
    except (ImportError, OSError):
        return None
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    try:
        pynvml.nvmlInit()
        index = int(visible[device]) if visible else device
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        read = partial(_read, pynvml, handle)
        read()
    except (pynvml.NVMLError, AttributeError, ValueError, IndexError):
        return None
    return read


def _read(nvml: Any, handle: Any) -> Reading:
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return Reading(
        nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        nvml.nvmlDeviceGetPowerUsage(handle) // 1000,
        nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        tuple(process.pid for process in processes if process.pid != os.getpid()),
    )


@dataclass
class Watch:
    """Reads the GPU every 20 ms from a thread while it is open; `state` sums it up."""

    reader: Reader | None
    period_s: float = PERIOD_S
    _readings: list[Reading] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        if self.reader is not None:
            self._thread = threading.Thread(target=self._watch, args=(self.reader,), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, reader: Reader) -> None:
        while True:
            self._readings.append(reader())
            if self._stop.wait(self.period_s):
                return

    @property
    def state(self) -> ClockState | None:
        """The readings so far as one; None without any."""
        return summed_up(self._readings) if self._readings else None


def summed_up(readings: list[Reading]) -> ClockState:
    """Medians over the busier half of the readings (the rest is set-up), and all reasons seen there."""
    busy = sorted(readings, key=lambda r: r.watts)[len(readings) // 2 :]
    bits = [bit for bit in THROTTLES if any(r.reasons & bit for r in busy)]
    return ClockState(
        mhz=round(median(r.mhz for r in busy)),
        mhz_low=min(r.mhz for r in busy),
        watts=round(median(r.watts for r in busy)),
        celsius=max(r.celsius for r in busy),
        throttled=tuple(THROTTLES[bit] for bit in bits),
        others=tuple(sorted({pid for r in readings for pid in r.others})),
    )
