"""A bound on how long a rank may be stuck, kept by a process of its own.

A library call that spins on its peers may hold the interpreter's lock, so that no thread of the rank
could notice. The watcher is forked before anything else starts; it reads what the rank last began
and ends the rank, with one line, when nothing new began for too long.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import sys
import time
from pathlib import Path

TEXT_BYTES = 240
HEAD_BYTES = 16
PR_SET_PDEATHSIG = 1  # linux/prctl.h
POLL_S = 0.25


class Watchdog:
    """Ends this process after `limit_s` without a beat. `beat` is a copy into shared memory.

    Start it before CUDA and before threads. A limit of 0 between `pause` and the next beat means
    that the rank may take as long as it likes (compiling kernels, for example). `told` is a file from
    which others can read what the rank last began, with `last_began`.
    """

    def __init__(self, rank: int, limit_s: float = 15.0, told: Path | None = None) -> None:
        self._limit_s = limit_s
        self._shared = _shared(told)
        self.pause("starting")
        rank_pid = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            watch(self._shared, rank, rank_pid)

    def beat(self, what: str) -> None:
        """The rank begins `what`."""
        self._write(self._limit_s, what)

    def pause(self, what: str) -> None:
        """Nothing is bounded until the next beat."""
        self._write(0.0, what)

    def stop(self) -> None:
        """End the watcher."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _write(self, limit_s: float, what: str) -> None:
        text = what.encode()[:TEXT_BYTES].ljust(TEXT_BYTES)
        self._shared[:] = struct.pack("dd", time.monotonic(), limit_s) + text


def _shared(told: Path | None) -> mmap.mmap:
    if told is None:
        return mmap.mmap(-1, HEAD_BYTES + TEXT_BYTES)
    told.write_bytes(bytes(HEAD_BYTES + TEXT_BYTES))
    with told.open("r+b") as file:
        return mmap.mmap(file.fileno(), HEAD_BYTES + TEXT_BYTES)


def last_began(told: Path) -> str:
    """What a rank, alive or not, last began; empty when it never said."""
    try:
        return told.read_bytes()[HEAD_BYTES:].decode(errors="replace").strip("\0 ")
    except OSError:
        return ""


def end_with(parent: int) -> None:
    """Let the kernel end this process when `parent`, which started it, is gone, however it ended; a
    stopped process too."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def watch(shared: mmap.mmap, rank: int, rank_pid: int) -> None:
    """The watcher's life: until the rank is gone, or until it has to go."""
    end_with(rank_pid)
    while os.getppid() == rank_pid:
        began, limit_s = struct.unpack("dd", shared[:HEAD_BYTES])
        if limit_s and time.monotonic() - began > limit_s:
            what = shared[HEAD_BYTES:].decode(errors="replace").strip()
            message = (
                f"rank {rank}: no progress for {limit_s:.0f} s in {what}; a peer is lost or stuck"
            )
            sys.stderr.write(message + "\n")
            sys.stderr.flush()
            os.kill(rank_pid, signal.SIGKILL)
            break
        time.sleep(POLL_S)
    os._exit(0)
