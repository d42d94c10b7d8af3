"""Builds executor/spin.cu with nvcc and calls it: spin kernels, peers' memory, a ping-pong."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from executor.kernel_set import ExecutorError, MissingResource

MAX_RANKS = 8
HANDLE_BYTES = 64
STAMP_WORDS = 4
SOURCE = Path(__file__).with_name("spin.cu")


class SpinArgs(ctypes.Structure):
    """Mirror of `SpinArgs` in spin.cu, which says what each field means."""

    _fields_ = (
        ("stamps", ctypes.c_void_p),
        ("tile_ns", ctypes.c_longlong),
        ("deadline_ns", ctypes.c_longlong),
        ("tiles", ctypes.c_int),
        ("next_tile", ctypes.c_void_p),
        ("placed", ctypes.c_void_p),
        ("flags", ctypes.c_void_p * MAX_RANKS),
        ("rank", ctypes.c_int),
        ("ranks", ctypes.c_int),
        ("wait_on_start", ctypes.c_uint),
        ("arrive_on_end", ctypes.c_uint),
        ("raises", ctypes.c_void_p),
        ("polls", ctypes.c_void_p),
        ("blocks", ctypes.c_int),
        ("threshold", ctypes.c_uint),
        ("error", ctypes.c_void_p),
    )


def build(arch: str, source: Path = SOURCE, cache: Path | None = None) -> Path:
    """The shared library for a GPU architecture (`sm_90`), built once per source and user.

    Raises MissingResource without nvcc, ExecutorError with the compiler's first error line.
    """
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).exists():
        raise MissingResource("spin kernels need nvcc on the PATH; there is none")
    digest = hashlib.sha256(source.read_bytes() + arch.encode()).hexdigest()[:16]
    folder = cache or Path(tempfile.gettempdir()) / f"moe-overlap-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = folder / f"spin-{digest}.so"
    if not target.exists():
        partial = folder / f"spin-{digest}.{os.getpid()}.so"
        command = [nvcc, f"-arch={arch}", "-O2", "-shared", "-Xcompiler", "-fPIC"]
        done = subprocess.run(
            [*command, "-o", str(partial), str(source)], capture_output=True, text=True
        )
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            raise ExecutorError(f"nvcc could not build {source.name}: {lines[0]}")
        partial.replace(target)
    return target


@dataclass(frozen=True)
class SharedMemory:
    """Device memory of this rank that peers may open: its address here and its handle."""

    address: int
    handle: bytes


class SpinLibrary:
    """The C interface of spin.cu on the current device; errors become ExecutorError."""

    def __init__(self, path: Path, max_smem_bytes: int) -> None:
        self._c = ctypes.CDLL(str(path))
        self._c.error_name.restype = ctypes.c_char_p
        self._check(self._c.spin_prepare(max_smem_bytes), "setting the shared memory limit")

    def launch(
        self, stream: int, ctas: int, threads: int, smem_bytes: int, gang: bool, args: SpinArgs
    ) -> None:
        """Launch `spin` on a CUDA stream handle."""
        code = self._c.spin_launch(
            ctypes.c_void_p(stream), ctas, threads, smem_bytes, int(gang), ctypes.byref(args)
        )
        self._check(code, f"launching {ctas} CTAs with {smem_bytes} bytes of shared memory")

    def ping_pong(
        self, stream: int, mine: int, theirs: int, *, leads: bool, turns: int, out: int, error: int
    ) -> None:
        """Launch one side of the clock comparison; `out` takes int64[turns, 2]."""
        code = self._c.spin_ping_pong(
            ctypes.c_void_p(stream),
            ctypes.c_void_p(mine),
            ctypes.c_void_p(theirs),
            int(leads),
            turns,
            ctypes.c_void_p(out),
            ctypes.c_longlong(5_000_000_000),
            ctypes.c_void_p(error),
        )
        self._check(code, "launching the clock comparison")

    def allocate(self, nbytes: int) -> SharedMemory:
        """Zeroed device memory that other processes can open."""
        address = ctypes.c_void_p()
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        code = self._c.shared_alloc(ctypes.c_size_t(nbytes), ctypes.byref(address), handle)
        self._check(code, f"allocating {nbytes} shared bytes")
        return SharedMemory(address.value or 0, handle.raw)

    def open(self, handle: bytes) -> int:
        """Address of a peer's shared memory in this process."""
        address = ctypes.c_void_p()
        code = self._c.shared_open(ctypes.create_string_buffer(handle), ctypes.byref(address))
        self._check(code, "opening a peer's memory (no peer access between the GPUs?)")
        return address.value or 0

    def clear(self, address: int, nbytes: int) -> None:
        """Zero own device memory and wait for it."""
        code = self._c.shared_clear(ctypes.c_void_p(address), ctypes.c_size_t(nbytes))
        self._check(code, "clearing shared memory")

    def close(self, address: int) -> None:
        """Forget a peer's memory."""
        self._check(self._c.shared_close(ctypes.c_void_p(address)), "closing a peer's memory")

    def free(self, memory: SharedMemory) -> None:
        """Free own shared memory."""
        self._check(self._c.shared_free(ctypes.c_void_p(memory.address)), "freeing shared memory")

    def _check(self, code: int, what: str) -> None:
        if code:
            raise ExecutorError(f"{what}: {self._c.error_name(code).decode()}")
