"""What of the spin set needs no GPU: its C mirror, the clocks' arithmetic, the random programs."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.spin_programs import random_program, scaled
from executor.execute import execute
from executor.kernel_set import MissingResource
from executor.peers import Clock, clock_from_stamps
from executor.recording import Recording
from executor.spin_library import SOURCE, SpinArgs, build
from schedules.lint import lint
from schedules.program import Launch

pytestmark = pytest.mark.torch
NVCC = shutil.which("nvcc")


def test_the_clock_offset_comes_from_the_quickest_turn() -> None:
    leader = [(1000, 5000), (10_000, 11_000)]
    other = [(0, 9000), (0, 110_500)]
    assert clock_from_stamps(leader, other) == Clock(offset_ns=100_000, error_ns=500)


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
def test_the_arguments_lie_where_the_kernel_reads_them(tmp_path: Path) -> None:
    names = [name for name, _ in SpinArgs._fields_]
    lines = "".join(f'printf("%zu\\n", offsetof(SpinArgs, {name}));' for name in names)
    main = tmp_path / "offsets.cu"
    main.write_text(
        f'#include "{SOURCE}"\n#include <cstddef>\n#include <cstdio>\n'
        f'int main() {{ {lines} printf("%zu\\n", sizeof(SpinArgs)); }}\n'
    )
    program = tmp_path / "offsets"
    subprocess.run([str(NVCC), "-o", str(program), str(main)], check=True, capture_output=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    expected = [getattr(SpinArgs, name).offset for name in names]
    assert [int(line) for line in printed.split()] == [*expected, ctypes.sizeof(SpinArgs)]


def test_a_machine_without_nvcc_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: str(tmp_path / "absent"))
    with pytest.raises(MissingResource, match="nvcc"):
        build("sm_90", cache=tmp_path)


@pytest.mark.parametrize("ranks", [1, 2])
def test_random_programs_are_sound_and_repeat_by_seed(ranks: int) -> None:
    for seed in range(12):
        program = random_program(seed, ranks=ranks, num_sms=132)
        assert program == random_program(seed, ranks=ranks, num_sms=132)
        assert not [found for found in lint(program) if found.severity == "error"]
        for rank in program.ranks:
            execute(program, Recording(), rank=rank)
    assert random_program(1, ranks=2, num_sms=132) != random_program(2, ranks=2, num_sms=132)


def test_scaling_leaves_the_gate_alone() -> None:
    whole = random_program(3, ranks=1, num_sms=132)
    half = scaled(whole, 0.5)

    def times(steps: tuple[object, ...]) -> list[int]:
        return [s.op.work.dim("cta_ns") for s in steps if isinstance(s, Launch)]

    before, after = times(whole.classes[0].steps), times(half.classes[0].steps)
    assert after[0] == before[0]
    assert after[1:] == [time // 2 for time in before[1:]]
