"""Shared memory that the specialised kernels touch without asking for it: the bytes by which the compiler
tells warps their part, and the named barrier between their writers and readers. Needs no GPU.

Run as `partition_words.py` without the interpreter; a line for each access, in the order of the PTX.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import triton

from tests.executor.kernels.compile_all import attention, specialised

PLAIN = re.compile(r"(ld|st)\.shared\.\S+\s.*\[(?:%r\d+|global_smem)\+(\d+)\]")
LOCATION = re.compile(r"\.loc\s+\d+\s+(\d+)")
LAST_BYTES = 16
NO_STEP = re.compile(r"^\s*(\.loc|//|\$L|setmaxnreg|mov\.b32|add\.s32)")


def compiled() -> list[Any]:
    """Both kernels as Triton's results."""
    found = []
    compile_one = triton.compile

    def kept(*args: Any, **options: Any) -> Any:
        found.append(compile_one(*args, **options))
        return found[-1]

    with patch("triton.compile", kept):
        specialised(True, True, 6)
        attention(False)
    return [result for result in found if result.metadata.name.startswith("specialised")]


def accesses(ptx: str, line: int, shared: int) -> Iterator[tuple[str, int, bool]]:
    """Plain accesses that the compiler attributes to the kernel's first line, and all to the last bytes
    of its shared memory: (ld or st, byte, whether barrier 1 of all warps comes next to it: after a write,
    before a read)."""
    text = ptx.splitlines()
    at = 0
    for number, step in enumerate(text):
        location = LOCATION.search(step)
        at = int(location[1]) if location else at
        found = PLAIN.search(step)
        if found is None or (at != line and int(found[2]) < shared - LAST_BYTES):
            continue
        way = range(number + 1, len(text)) if found[1] == "st" else range(number - 1, -1, -1)
        beside = next(text[i] for i in way if not NO_STEP.match(text[i]))
        yield found[1], int(found[2]), beside.split() == ["barrier.sync", "1;"]


def main() -> None:
    """Compile, look, print."""
    for result in compiled():
        name, shared = result.metadata.name, result.metadata.shared
        module = sys.modules[f"executor.kernels.{name.removesuffix('_kernel')}"]
        line = getattr(module, name).fn.__code__.co_firstlineno + 1
        for kind, byte, barrier in accesses(result.asm["ptx"], line, shared):
            print(f"{name} {kind} {byte} of {shared}{' barrier' if barrier else ''}")  # noqa: T201


if __name__ == "__main__":
    main()
