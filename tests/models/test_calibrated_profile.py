"""From records to a profile and back: what was measured is what the loaded machine answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.calibrated_profile import Calibrated, Earlier, base_profile, calibrated
from models.calibration_records import sorted_out, work_of, work_record
from models.counts import elementwise, gemm, grouped_gemm
from models.errors import InputError
from models.machine import Machine
from models.profile import load_machine
from models.work import Grid, Work

BASE = "h200-2x-nvlink"
SEED = 5
SOURCE = "synthetic"
SHAPES = ((2112, 7168), (7168, 16384), (4096, 7168))
STATIC = Grid(kind="static")


def dense() -> list[tuple[Work, int, Grid]]:
    sizes = (1024, 2048, 4096, 8192, 12288, 16384)
    return [
        (gemm(m, n, k, "fp8_block"), sms, STATIC)
        for m in sizes
        for n, k in SHAPES
        for sms in (132, 116, 100)
    ]


def norms() -> list[tuple[Work, int, Grid]]:
    return [
        (elementwise("norm", rows, 7168, rows * 14336, rows * 14336), 132, Grid())
        for rows in (64, 256, 1024, 4096, 16384)
    ]


def records(noise: np.random.Generator, factor: float = 1.25) -> list[dict[str, Any]]:
    """Times of the base profile, `factor` slower, with 2 % noise, and slowdowns of known laws."""
    base = load_machine(BASE)
    result: list[dict[str, Any]] = [
        {"what": "machine", "gpu": "NVIDIA H200", "torch": "2.11.0"},
        {"what": "gaps", "ns": {"stream": 1500.0, "reaction": 350.0, "of another version": 7}},
        {"what": "host", "class": "triton", "ns": 22000.0},
        {"what": "host", "class": "triton", "ns": 24000.0},
        {"what": "hbm", "gbps": 4250.0},
    ]
    for work, sms, grid in (*dense(), *norms()):
        ns = base.costs.alone(work, grid, sms).ns * factor * (1 + 0.02 * noise.standard_normal())
        result.append(
            {
                "what": "alone", "work": work_record(work), "sms": sms, "ns": ns, "spread": 0.01,
                "mhz": 1900, "watts": 600, "throttled": ["power cap"], "others": [],
            }
        )  # fmt: skip
    for index, rho in enumerate((0.0, 0.2, 0.4, 0.6, 0.8) * 3):
        slow = 1 + 0.2 * 0.8 + 0.15 * rho / (1 - rho)
        result.append(_beside("dispatch", f"stream {index}", "normal", (), slow, 0.8, rho))
        result.append(_beside("dense", f"dispatch {index}", "", ("gemm",), 1.1, 0.18, 0.05))
    return result


def _beside(
    victim: str, other: str, family: str, kinds: Iterable[str], slow: float, busy: float, rho: float
) -> dict[str, Any]:
    return {
        "what": "beside", "victim": victim, "aggressor": other, "family": family,
        "kinds": list(kinds), "slowdown": slow, "busy": busy, "gbps": 4250.0 * rho,
    }  # fmt: skip


@pytest.fixture(scope="module")
def made() -> Calibrated:
    given = sorted_out(records(np.random.default_rng(1)), SEED, SOURCE)
    return calibrated(given, name="mine", base=BASE, seed=SEED, source=SOURCE)


@pytest.fixture
def machine(made: Calibrated, tmp_path: Path) -> Machine:
    return load_machine(written(made, tmp_path))


def written(made: Calibrated, folder: Path) -> Path:
    path = folder / "mine.yaml"
    path.write_text(made.profile)
    (folder / made.points_file).write_text(made.points)
    return path


def test_figures_and_laws_land_in_the_machine(machine: Machine) -> None:
    assert (machine.gaps.stream, machine.gaps.reaction) == (1500, 350)
    assert machine.gaps.graph_node == load_machine(BASE).gaps.graph_node
    assert machine.host.ns("triton") == 23000
    assert machine.interference.achievable_hbm_gbps == 4250
    c0, c1 = machine.interference.coefficients("normal")
    assert c0 == pytest.approx(0.2, abs=0.02) and c1 == pytest.approx(0.15, abs=0.01)
    for kind in ("gemm", "topk"):
        c0, c1 = machine.interference.compute_coefficients(kind)
        assert 1 + c0 * 0.18 + c1 * 0.05 / 0.95 == pytest.approx(1.1, abs=0.005)


def test_directions_and_sms_of_an_exchange_have_their_own_coefficients(tmp_path: Path) -> None:
    given = records(np.random.default_rng(2))
    laws = {("dispatch", 8): 0.3, ("dispatch", 32): 0.1, ("combine", 8): 0.6, ("combine", 32): 0.2}
    for (exchange, sms), c1 in laws.items():
        for rho in (0.0, 0.15, 0.3, 0.45, 0.6):
            slow = 1 + 0.2 * 0.8 + c1 * rho / (1 - rho)
            entry = _beside(f"{exchange} on {sms}", f"a {rho}", "normal", (), slow, 0.8, rho)
            given.append(entry | {"exchange": exchange, "exchange_sms": sms})
    sorted_records = sorted_out(given, SEED, SOURCE)
    made = calibrated(sorted_records, name="mine", base=BASE, seed=SEED, source=SOURCE)
    rules = load_machine(written(made, tmp_path)).interference
    for (exchange, sms), c1 in laws.items():
        assert rules.coefficients("normal", exchange, sms)[1] == pytest.approx(c1, abs=0.02)
    assert {entry.name for entry in made.pairs} >= {"normal dispatch", "normal combine"}


def test_the_power_of_an_exchanges_size_is_recovered(tmp_path: Path) -> None:
    """Slowdowns made with c0 falling as the size to the 0.4; most were measured at 3000 tokens."""
    given = records(np.random.default_rng(4))
    for tokens in (1500, 3000, 6000):
        for sms in (8, 24):
            for rho in (0.1, 0.25, 0.5, 0.7) + ((0.35, 0.6) if tokens == 3000 else ()):
                c0 = (0.3 if sms == 8 else 0.2) * (tokens / 3000) ** -0.4
                slow = 1 + c0 * 0.9 + 0.25 * rho / (1 - rho)
                entry = _beside(
                    f"combine on {sms}", f"a {tokens} {rho}", "normal", (), slow, 0.9, rho
                )
                entry |= {"exchange": "combine", "exchange_sms": sms}
                given.append(
                    entry | {"task": f"pairs exchange=combine num_sms={sms} tokens={tokens}"}
                )
    made = calibrated(
        sorted_out(given, SEED, SOURCE), name="mine", base=BASE, seed=SEED, source=SOURCE
    )
    rules = load_machine(written(made, tmp_path)).interference
    ((family, name, law),) = rules.by_size
    assert (family, name, law.tokens, law.least, law.most) == (
        "normal",
        "combine",
        3000,
        1500,
        6000,
    )
    assert law.power == pytest.approx(-0.4, abs=0.05)
    assert rules.coefficients("normal", "combine", 8, 3000) == pytest.approx((0.3, 0.25), rel=0.05)


@pytest.mark.parametrize("scatter", [0.0, 0.1])
def test_the_error_of_slowdowns_is_how_far_they_lie_from_the_others_law(
    scatter: float, tmp_path: Path
) -> None:
    given = records(np.random.default_rng(2))
    for number in range(40):
        rho = 0.6 * number / 40
        slow = (1 + 0.2 * 0.8 + 0.2 * rho / (1 - rho)) * (1 + scatter * (-1) ** number)
        entry = _beside("combine on 16", f"a {number}", "normal", (), slow, 0.8, rho)
        given.append(entry | {"exchange": "combine", "exchange_sms": 16})
    made = calibrated(
        sorted_out(given, SEED, SOURCE), name="mine", base=BASE, seed=SEED, source=SOURCE
    )
    rules = load_machine(written(made, tmp_path)).interference
    assert dict(rules.errors)["normal combine"] == pytest.approx(scatter, abs=scatter / 2 + 0.005)
    assert rules.victim("normal", "combine") == "normal combine"
    assert rules.victim("normal", "notify") == "normal"
    assert rules.victim("", "head") == "compute"


def test_the_hosts_error_is_how_far_tasks_are_apart() -> None:
    """Of eleven tasks the second slowest and the second fastest are 80 and 130 us, the middle one 100."""
    gemms = (70, 80, 85, 90, 95, 100, 105, 110, 120, 130, 400)
    host = [{"what": "host", "class": "gemm", "ns": 1000.0 * us} for us in gemms]
    given = sorted_out(records(np.random.default_rng(1))[4:] + host, SEED, SOURCE)
    assert given.host_ns["gemm"] == 100_000
    assert given.host_error == pytest.approx(0.25)


def test_what_another_calibration_differs_by_is_stated(tmp_path: Path) -> None:
    given = sorted_out(records(np.random.default_rng(1)), SEED, SOURCE)
    slower = [replace(point, ns=point.ns / 1.04) for point in given.points]
    made = calibrated(
        given, name="mine", base=BASE, seed=SEED, source=SOURCE, earlier=Earlier(slower[:10])
    )
    assert "repeat: 0.04\n" in made.profile
    point = given.points[0]
    machine = load_machine(written(made, tmp_path))
    cost = machine.costs.alone(point.work, STATIC, point.sms)
    assert cost.rel_error >= 0.04
    with pytest.raises(InputError, match="another calibration's"):
        calibrated(
            given, name="mine", base=BASE, seed=SEED, source=SOURCE, earlier=Earlier(given.points)
        )
    other = [replace(point, sms=7) for point in slower]
    with pytest.raises(InputError, match="against"):
        calibrated(given, name="mine", base=BASE, seed=SEED, source=SOURCE, earlier=Earlier(other))


def test_footprints_are_taken_where_an_sm_offers_them(tmp_path: Path) -> None:
    given = records(np.random.default_rng(1))
    fits = {"threads": 256, "registers": 16384, "smem_bytes": 4096}
    too_large = {"threads": 256, "registers": 1 << 20, "smem_bytes": 0}
    for entry in (record for record in given if record["what"] == "alone"):
        taken = fits if entry["work"]["kind"] == "gemm" else too_large
        entry["launches"] = [{"kernel": "odd", "ns": 100.0, "ctas": 128} | taken]
    sorted_records = sorted_out(given, SEED, SOURCE)
    made = calibrated(sorted_records, name="mine", base=BASE, seed=SEED, source=SOURCE)
    costs = load_machine(written(made, tmp_path)).costs
    footprint = costs.footprint(gemm(1024, 7168, 16384, "fp8_block"), STATIC)
    assert (footprint.threads, footprint.registers, footprint.smem_bytes) == (256, 16384, 4096)
    assert costs.footprint(elementwise("norm", 8, 7168, 8, 8), Grid()).registers < 65536


def test_what_was_measured_is_answered(machine: Machine) -> None:
    base = load_machine(BASE)
    given = sorted_out(records(np.random.default_rng(1)), SEED, SOURCE)
    grids = {"gemm": STATIC, "norm": Grid()}
    kept = [point for point in given.points if not point.held]
    for point in kept:
        cost = machine.costs.alone(point.work, grids[point.work.kind], point.sms)
        assert cost.ns == pytest.approx(point.ns, rel=1e-3)
        assert cost.label == "measured"
    between = gemm(1536, 7168, 16384, "fp8_block")
    cost = machine.costs.alone(between, STATIC, 108)
    assert cost.ns == pytest.approx(1.25 * base.costs.alone(between, STATIC, 108).ns, rel=0.05)
    assert cost.label == "interpolated"


def test_held_out_points_are_predicted_and_their_error_printed(made: Calibrated) -> None:
    held = {entry.name: entry for entry in made.kernels}
    assert held["gemm"].count >= 5
    assert 0.0 < held["gemm"].median < 0.05
    assert "held_seed: 5" in made.profile
    assert any(entry.name == "normal" and entry.worst < 0.01 for entry in made.pairs)


def test_clocks_and_throttling_are_told(made: Calibrated) -> None:
    assert "1900 to 1900 MHz" in made.profile
    assert "throttled by power cap" in made.profile


def test_a_measured_kind_gets_a_form_of_its_own(machine: Machine, made: Calibrated) -> None:
    assert "form: norm" in made.profile
    far = elementwise("norm", 100_000, 1536, 100_000 * 3072, 100_000 * 3072)
    expected = load_machine(BASE).costs.alone(far, Grid(), 132).ns * 1.25
    assert machine.costs.alone(far, Grid(), 132).ns == pytest.approx(expected, rel=0.1)


def test_a_key_taken_out_by_hand_is_named_by_line(made: Calibrated, tmp_path: Path) -> None:
    path = written(made, tmp_path)
    lines = made.profile.splitlines()
    number = next(i for i, line in enumerate(lines) if line.strip().startswith("held_seed"))
    path.write_text("\n".join(lines[:number] + lines[number + 1 :]) + "\n")
    with pytest.raises(InputError) as caught:
        load_machine(path)
    assert caught.value.key == "points.held_seed"
    assert lines[caught.value.line - 1] == "points:"


def test_a_profile_cut_off_at_any_section_does_not_stand_on_its_base(
    made: Calibrated, tmp_path: Path
) -> None:
    path = written(made, tmp_path)
    lines = made.profile.splitlines()
    starts = [number for number, line in enumerate(lines) if number and line[0] != " "]
    points = next(number for number, line in enumerate(lines) if line.startswith("points:"))
    for number in sorted({*starts, *range(points, len(lines)), points - 1}):
        path.write_text("\n".join(lines[:number]) + "\n")
        with pytest.raises(InputError) as caught:
            load_machine(path)
        assert caught.value.source == str(path)
        assert caught.value.key.partition(".")[0] in ("interference", "points")
        assert 0 < caught.value.line <= number


def test_a_measured_gpu_without_points_is_refused_wherever_the_file_lies(
    made: Calibrated, tmp_path: Path
) -> None:
    path = tmp_path / "alone.yaml"
    before, _, _ = made.profile.partition("points:")
    path.write_text(before)
    with pytest.raises(InputError, match=r"points: is missing.*calibrate writes it: cut off here"):
        load_machine(path)
    mine = f"base: {BASE}\nname: mine\nsource: me\ngpu: {{hbm_gib: 100.0}}\n"
    path.write_text(mine)
    assert load_machine(path).hbm_gib == 100.0


def test_points_that_are_gone_are_named(made: Calibrated, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(made.profile)
    with pytest.raises(InputError, match=r"mine.points.csv"):
        load_machine(path)


def test_the_hash_covers_the_points(made: Calibrated, tmp_path: Path) -> None:
    path = written(made, tmp_path)
    before = load_machine(path).profile_sha256
    points = tmp_path / made.points_file
    points.write_text(points.read_text().replace(",0.0100,", ",0.0200,", 1))
    assert load_machine(path).profile_sha256 != before


def test_a_kinds_footprint_is_its_longest_kernels_and_its_ctas_are_counted(tmp_path: Path) -> None:
    given = records(np.random.default_rng(3))
    for index, entry in enumerate(r for r in given if r["what"] == "alone"):
        kernel = {"kernel": "norm_kernel", "registers": 4096, "smem_bytes": 64}
        rows = entry["work"]["dims"].get("rows", 1)
        if entry["work"]["kind"] == "norm":
            small = kernel | {"ns": 10.0, "ctas": 3, "threads": 32}
            long = kernel | {"ns": 1000.0 + index, "ctas": rows // 2, "threads": 128}
            entry["launches"] = [small, long]
    sorted_records = sorted_out(given, SEED, SOURCE)
    assert {p.launches for p in sorted_records.points if p.work.kind == "norm"} == {2}
    made = calibrated(sorted_records, name="mine", base=BASE, seed=SEED, source=SOURCE)
    norm = elementwise("norm", 640, 7168, 8, 8)
    footprint = load_machine(written(made, tmp_path)).costs.footprint(norm, Grid())
    assert (footprint.ctas, footprint.threads, footprint.registers) == (320, 128, 4096)


def test_works_survive_their_record() -> None:
    for work in (
        gemm(5, 7, 128, "fp8_block"),
        grouped_gemm("grouped_gemm_masked", (3, 0, 200), 4096, 7168, "fp8_block", 1),
    ):
        assert work_of(work_record(work)) == work


def test_repeated_points_become_their_median_with_their_spread() -> None:
    work = gemm(128, 4096, 7168, "fp8_block")
    takes = [
        {"what": "alone", "work": work_record(work), "sms": 132, "ns": ns, "spread": 0.01}
        for ns in (100.0, 110.0, 90.0)
    ]
    (point,) = sorted_out(takes, SEED, SOURCE).points
    assert point.ns == 100.0
    assert point.spread == pytest.approx(0.2)


@pytest.mark.parametrize(
    "record",
    [{"what": "sideways"}, {"what": "footprint", "kind": "norm"}, {"what": "alone", "sms": 3}, {}],
)
def test_a_record_that_is_none_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="record 1"):
        sorted_out([record], SEED, "records.jsonl")


def test_the_base_is_found_by_the_gpus_own_name() -> None:
    assert base_profile("NVIDIA H200", 2) == "h200-2x-nvlink"
    assert base_profile("NVIDIA H200", 8) == "h200-8x-ib"
    with pytest.raises(InputError, match="--base"):
        base_profile("NVIDIA A100-SXM4-80GB", 2)
    with pytest.raises(InputError, match="--base"):
        base_profile("NVIDIA H200", 500)


def test_gaps_fit_the_clock_that_kernel_times_were_read_on() -> None:
    records: list[dict[str, Any]] = [
        {"what": "gaps", "ns": {"stream": 1500.0, "graph_node": 800.0, "reaction": 160.0}},
        {"what": "trace_gap", "ns": 1100.0},
        {"what": "trace_gap", "ns": 1050.0},
        {"what": "trace_gap", "ns": 1150.0},
    ]
    gaps = sorted_out(records, SEED, SOURCE).gaps_ns
    assert gaps == {"stream": 1100, "graph_node": 400, "reaction": 160}
