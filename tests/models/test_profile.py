"""Hardware profiles: the library, what they state, and every refusal with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.counts import gemm
from models.errors import InputError
from models.profile import library_machines, load_machine
from models.work import Grid

POWER = "base: h200-8x-ib\npower:\n  source: x\n  most: 0.5\n  kinds: "


def test_the_library_states_the_data_sheets() -> None:
    assert set(library_machines()) >= {"h100-8x-ib", "h200-2x-nvlink", "h200-8x-ib"}
    h100, h200 = load_machine("h100-8x-ib"), load_machine("h200-8x-ib")
    assert (h100.num_sms, h100.hbm_gib, h200.hbm_gib) == (132, 80.0, 141.0)
    assert (h200.fabric.gpus_per_node, h200.fabric.nvlink_gbps, h200.fabric.nic_gbps) == (
        8,
        450,
        50,
    )
    assert load_machine("h200-2x-nvlink").fabric.gpus_per_node == 2
    assert h200.compute_capability == (9, 0)
    assert h200.grid("gemm").kind == "static"
    assert h200.grid("dispatch").gang
    with pytest.raises(KeyError, match="lists no grid"):
        h200.grid("spin")


def test_gaps_are_those_measured_on_h200() -> None:
    gaps = load_machine("h200-8x-ib").gaps
    assert (gaps.stream, gaps.event, gaps.cross_stream) == (1800, 3800, 1700)
    assert (gaps.graph_node, gaps.reaction) == (800, 400)


def test_interference_lands_in_the_measured_range() -> None:
    """Dispatch on 24 SMs beside 108 busy ones: x1.2 beside a dense GEMM that uses a quarter of HBM,
    x2 to x2.2 beside one that streams weights."""
    near = load_machine("h200-8x-ib").interference
    c0, c1 = near.coefficients("normal")

    def slowdown(rho: float) -> float:
        return 1 + c0 * 108 / 132 + c1 * rho / (1 - rho)

    assert 1.15 < slowdown(0.25) < 1.25
    assert 1.95 < slowdown(0.85) < 2.25


def test_the_hash_names_all_files_of_a_profile() -> None:
    hashes = {load_machine(name).profile_sha256 for name in library_machines()}
    assert len(hashes) == len(library_machines())
    assert load_machine("h200-8x-ib").profile_sha256 in hashes


def derived(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_a_profile_of_ones_own_changes_what_it_names(tmp_path: Path) -> None:
    path = derived(
        tmp_path,
        "base: h200-8x-ib\nname: mine\ngpu:\n  sms: 66\n  source: half a GPU\n"
        "fabric:\n  gpus_per_node: 4\n",
    )
    mine = load_machine(path)
    assert (mine.name, mine.num_sms, mine.fabric.gpus_per_node) == ("mine", 66, 4)
    assert mine.hbm_gib == 141.0
    cost = mine.costs.alone(gemm(1024, 7168, 7168, "fp8_block"), Grid(kind="static"), 66)
    assert cost.ns > 0


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("base: h200-8x-ib\ngpu:\n  sms: many\n", "gpu.sms", 3),
        ("base: h200-8x-ib\ngpu:\n  smss: 132\n", "gpu.smss", 3),
        ("base: h200-8x-ib\nfabric:\n  nic_gbps: -1\n", "fabric.nic_gbps", 3),
        ("base: h200-8x-ib\nfabric:\n  nic_gbps: .nan\n", "fabric.nic_gbps", 3),
        ("base: h200-8x-ib\nforms:\n  mine: {floor_us: 1}\n", "forms.mine.source", 3),
        ("base: h200-8x-ib\nkernels:\n  gemm: {grid: wavy}\n", "kernels.gemm.grid", 3),
        ("POWER{gemm: {share: 2.0, ns: 9}}\n", "power.kinds.gemm.share", 5),
        ("POWER{gem: {share: 1.0, ns: 9}}\n", "power.kinds.gem", 5),
        ("base: nowhere\n", "hardware", 0),
        ("name: mine\nschema: 1\n", "source", 0),
        ("name: [unclosed\n", "file", 2),
        ("name: &a mine\nsource: *a\n", "file", 0),
        ("- a list\n", "file", 0),
        ("base: mine\n", "base", 0),
    ],
)
def test_a_fault_is_named_by_file_line_and_key(
    tmp_path: Path, text: str, key: str, line: int
) -> None:
    path = derived(tmp_path, text.replace("POWER", POWER))
    with pytest.raises(InputError) as caught:
        load_machine(path)
    assert caught.value.key == key
    assert caught.value.line == line
    assert "allowed" in str(caught.value)


def test_binary_and_absent_files_are_one_message(tmp_path: Path) -> None:
    binary = tmp_path / "junk.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    for name in (binary, tmp_path, tmp_path / "absent.yaml", "h300"):
        with pytest.raises(InputError):
            load_machine(name)
    with pytest.raises(InputError, match="did you mean"):
        load_machine("h200-8x-ibb")
