"""Costs against their tables, against published facts, and against plain sense."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.costs import ProfileCosts
from models.counts import elementwise, gemm
from models.deployment import Batch, Deployment, LayerKernels
from models.errors import InputError
from models.layer import layer_kernels
from models.machine import Machine
from models.profile import library_machines, load_machine, load_profile
from models.work import Grid, Work, work
from tests.models.layer_cases import decode, deployment, kernel, prefill, spread

STATIC = Grid(kind="static")


@pytest.fixture(scope="module")
def h200() -> Machine:
    return load_machine("h200-8x-ib")


def on(machine: Machine, base: Deployment) -> Deployment:
    return replace(base, machine=machine)


def us(machine: Machine, size: Work, grid: Grid = STATIC, sms: int = 132) -> float:
    return machine.costs.alone(size, grid, sms).ns / 1e3


def names_us(machine: Machine, layer: LayerKernels, *names: str) -> float:
    kernels = [kernel(layer, name) for name in names]
    return sum(us(machine, k.work, k.grid, k.grid.sm_budget or 132) for k in kernels)


@pytest.mark.parametrize(
    ("m", "n", "k", "weights", "measured_us"),
    [  # rows of AIConfigurator's H200 GEMM table
        (1024, 7168, 7168, "fp8_block", 108.31),
        (2, 1536, 7168, "fp8_block", 13.948),
        (16, 7168, 4096, "fp8_block", 12.748),
    ],
)
def test_a_measured_point_is_returned_as_measured(
    h200: Machine, m: int, n: int, k: int, weights: str, measured_us: float
) -> None:
    cost = h200.costs.alone(gemm(m, n, k, weights), STATIC, 132)
    assert cost.label == "measured"
    assert cost.ns / 1e3 == pytest.approx(measured_us, rel=1e-3)


def test_labels_go_from_measured_to_roofline(h200: Machine) -> None:
    def label(size: Work) -> str:
        return h200.costs.alone(size, STATIC, 132).label

    assert label(gemm(1000, 7168, 7168, "fp8_block")) == "interpolated"
    assert label(gemm(100_000, 7168, 7168, "fp8_block")) == "fitted"
    assert label(gemm(128, 24576, 1536, "fp8_block")) == "fitted"  # k outside the table
    assert label(elementwise("norm", 4096, 7168, 1 << 25, 1 << 25)) == "roofline"


def test_between_two_points_lies_between_their_times(h200: Machine) -> None:
    low, middle, high = (us(h200, gemm(m, 4096, 7168, "fp8_block")) for m in (2048, 2500, 3072))
    assert low < middle < high


@pytest.mark.parametrize("model", ["deepseek-v3", "qwen3-30b-a3b", "glm-4.5", "deepseek-v3.2"])
@pytest.mark.parametrize("machine", library_machines())
def test_every_kernel_of_a_layer_has_a_price(model: str, machine: str) -> None:
    found = load_machine(machine)
    for mode in ("low_latency", "normal"):
        case = on(found, deployment(model, mode=mode))
        experts, top_k = case.model.n_routed_experts, case.model.top_k
        layer = layer_kernels(case, prefill(8, 2, 64), spread(8, 128, experts, top_k), 0)
        for group in layer.groups.values():
            for each in group:
                cost = found.costs.alone(each.work, each.grid, each.grid.sm_budget or found.num_sms)
                assert cost.ns > 0
                assert cost.rel_error > 0
                footprint = found.costs.footprint(each.work, each.grid)
                assert footprint.ctas >= 1
                assert footprint.smem_bytes <= found.sm.smem_bytes
                assert footprint.registers <= found.sm.registers
                assert footprint.threads <= found.sm.threads


def test_sizes_that_no_table_has_are_never_called_measured(h200: Machine) -> None:
    """Qwen3's experts and hidden size, Kimi's 64 heads: the tables are DeepSeek-V3's."""
    qwen = on(h200, deployment("qwen3-30b-a3b", mode="normal"))
    layer = layer_kernels(qwen, prefill(8, 2, 512), spread(8, 1024, 128, 8), 0)
    kimi = on(h200, deployment("kimi-k2"))
    decoding = layer_kernels(kimi, decode(8, 64, 1024), spread(8, 64, 384, 8), 0)
    found = [kernel(layer, name) for name in ("gemm1", "act", "gemm2", "dispatch", "attn")]
    for each in (*found, kernel(decoding, "attn"), kernel(decoding, "q_bmm")):
        cost = h200.costs.alone(each.work, each.grid, each.grid.sm_budget or 132)
        assert cost.label in ("fitted", "roofline"), each.name
        assert cost.rel_error >= 0.1, each.name


def test_machines_without_tables_say_so() -> None:
    """H20 has no public kernel table: its GEMMs are roofline with a wide error."""
    cost = load_machine("h20-8x-ib").costs.alone(gemm(1024, 7168, 7168, "fp8_block"), STATIC, 78)
    assert cost.label == "roofline"
    assert cost.rel_error >= 0.4


def test_h800_moves_less_over_nvlink_than_h100() -> None:
    """DeepEP publishes 153 GB/s at 4096 tokens on 8 H800 against about 335 GB/s here."""
    slow, fast = (
        exchange(8, 4096, "normal", "dispatch", load_machine(f"{gpu}-8x-ib"))
        for gpu in ("h800", "h100")
    )
    assert 1.7 < slow / fast < 2.5
    whole = whole_exchange(64, 128, "combine", load_machine("h800-8x-ib"))
    assert whole == pytest.approx(314.0, rel=0.02)  # DeepEP's own figure for 64 ranks


def test_fewer_sms_never_help(h200: Machine) -> None:
    layer = layer_kernels(
        on(h200, deployment(mode="normal")), prefill(8, 2, 512), spread(8, 1024), 0
    )
    for name in ("o_proj", "attn", "gemm1", "gemm2", "unpermute", "dispatch", "combine"):
        each = kernel(layer, name)
        times = [us(h200, each.work, each.grid, sms) for sms in (132, 108, 66, 24, 12)]
        assert times == sorted(times), name


def test_a_static_gemm_takes_whole_rounds_of_tiles(h200: Machine) -> None:
    # 4224 x 4096 in tiles of 128 x 128: 1056 tiles, 8 rounds on 132 SMs, 16 on 66, 10 on 108.
    full, half, capped = (
        us(h200, gemm(4224, 4096, 7168, "fp8_block"), sms=s) for s in (132, 66, 108)
    )
    assert half / full == pytest.approx(2.0, rel=0.1)
    assert capped / full == pytest.approx(10 / 8, rel=0.1)


def test_a_cap_costs_grouped_gemms_less_than_its_share_of_sms(h200: Machine) -> None:
    """Measured on H200 layers: 14 % longer on 112 of 132 SMs, where rounds alone would say 18 %."""
    case = on(h200, deployment(mode="normal"))
    layer = layer_kernels(case, prefill(8, 2, 2048), spread(8, 4096), 0)
    for name in ("gemm1", "gemm2"):
        each = kernel(layer, name)
        capped, free = (us(h200, each.work, each.grid, sms) for sms in (112, 132))
        assert capped / free == pytest.approx(1.14, abs=0.03)


def masked_pair(machine: Machine, ranks: int, tokens: int) -> float:
    layer = layer_kernels(
        on(machine, deployment(ep=ranks)), decode(ranks, tokens, 64), spread(ranks, tokens), 0
    )
    return names_us(machine, layer, "gemm1", "act", "gemm2")


def test_expert_time_is_flat_until_128_tokens_an_expert(h200: Machine) -> None:
    """Published tables: weights are read once whatever the count (EP64, 4 experts a rank)."""
    few, many = masked_pair(h200, 64, 4), masked_pair(h200, 64, 64)
    assert many / few == pytest.approx(1.0, abs=0.15)
    assert masked_pair(h200, 64, 512) > 2.5 * few


def test_expert_time_follows_the_active_experts_below_one_token(h200: Machine) -> None:
    """With 8 tokens a rank 8 of its 32 experts get all its copies, with 32 all do (EP8 table: 8
    active experts take 0.31 of 32)."""
    ratio = masked_pair(h200, 8, 32) / masked_pair(h200, 8, 8)
    assert 3.0 < ratio < 4.0


def test_the_parts_of_the_expert_pair_add_up_to_its_table(h200: Machine) -> None:
    # AIConfigurator, H200, generation, EP8, 128 tokens a rank, uniform: 32 rows on 32 experts.
    assert masked_pair(h200, 8, 128) == pytest.approx(391.0, rel=0.05)


@pytest.mark.parametrize(("tokens", "whole_us"), [(128, 29.45), (8192, 559.5)])
def test_shared_expert_kernels_against_the_table_of_the_whole_mlp(
    h200: Machine, tokens: int, whole_us: float
) -> None:
    """The MLP was timed as a whole by another collector; no cost here is read from that table."""
    layer = layer_kernels(
        on(h200, deployment(mode="normal")), prefill(8, 2, tokens // 2), spread(8, tokens), 0
    )
    names = ("gate_up.quantise", "gate_up", "act", "down.quantise", "down")
    total = names_us(h200, layer, *(f"shared.{name}" for name in names))
    assert total == pytest.approx(whole_us, rel=0.35)


def exchange(ranks: int, tokens: int, mode: str, name: str, machine: Machine) -> float:
    batch = decode(ranks, tokens, 64)
    layer = layer_kernels(
        on(machine, deployment(ep=ranks, mode=mode)), batch, spread(ranks, tokens), 0
    )
    return names_us(machine, layer, name)


def whole_exchange(ranks: int, tokens: int, name: str, machine: Machine) -> float:
    """A low-latency exchange across nodes from its send's start to its receive's end."""
    batch, routing = decode(ranks, tokens, 64), spread(ranks, tokens)
    layer = layer_kernels(on(machine, deployment(ep=ranks)), batch, routing, 0)
    return us(machine, layer.flights[name], Grid(), 1) + names_us(machine, layer, f"{name}.recv")


def test_normal_transfers_saturate_at_twenty_sms(h200: Machine) -> None:
    layer = layer_kernels(
        on(h200, deployment(mode="normal")), prefill(8, 2, 2048), spread(8, 4096), 0
    )
    for name in ("dispatch", "combine"):
        each = kernel(layer, name)
        four, eight, twenty, more = (us(h200, each.work, each.grid, s) for s in (4, 8, 20, 24))
        assert four / eight == pytest.approx(2.0, rel=0.1)
        assert more / twenty == pytest.approx(1.0, abs=0.06)


def test_a_skewed_rank_pays_in_bandwidth_not_in_floor(h200: Machine) -> None:
    def dispatch(copies: int) -> float:
        size = work(
            "dispatch",
            tokens=4096,
            copies=copies,
            nic_copies=0,
            payload=7488,
            ep_size=8,
            nodes=1,
            combine=0,
        )
        return us(h200, size, Grid(20, kind="dynamic", gang=True), 20)

    uniform = round(4096 * 5.252)  # distinct ranks of eight random experts of 256 on 8 ranks
    assert dispatch(uniform) == pytest.approx(494.15, rel=0.02)  # the table's own 4096 tokens
    doubled = dispatch(2 * uniform)
    assert 1.8 < doubled / dispatch(uniform) < 2.0


def test_low_latency_halves_and_flight_make_the_table(h200: Machine) -> None:
    """Across nodes flight and receive span the table's time; inside one the send copies."""
    table = (166.77 + 164.17) / 2  # EP64, 128 tokens
    assert whole_exchange(64, 128, "dispatch", h200) == pytest.approx(table, rel=0.02)
    assert exchange(8, 128, "low_latency", "combine.recv", h200) == pytest.approx(8.0)
    inside = exchange(8, 128, "low_latency", "dispatch.send", h200)
    assert inside + 8.0 == pytest.approx(35.1, rel=0.02)


@pytest.mark.parametrize(("name", "unit_test_us"), [("dispatch", 30.05), ("combine", 38.35)])
def test_resident_kernels_meet_a_unit_test_across_nodes(name: str, unit_test_us: float) -> None:
    """Fitted inside a node, met across nodes: send and receive of 128 tokens as published beside the
    DeepSeek-V3 decode breakdown on 72 H100s (benchmarks/data, series UnitTest)."""
    machine = load_machine("h100-8x-ib")
    halves = (exchange(64, 128, "low_latency", f"{name}.{h}", machine) for h in ("send", "recv"))
    assert sum(halves) == pytest.approx(unit_test_us, rel=0.15)


def test_an_absent_kind_is_an_error_with_the_known_ones(h200: Machine) -> None:
    with pytest.raises(InputError, match="kernels: 'spin'"):
        h200.costs.alone(work("spin", ctas=4, cta_ns=10), Grid(), 4)
    with pytest.raises(InputError, match=r"gpu\.peak_tflops: 'fp4'.*bf16, fp8"):
        h200.costs.alone(gemm(128, 7168, 7168, "nvfp4"), STATIC, 132)
    with pytest.raises(ValueError, match="on 0 SMs"):
        h200.costs.alone(gemm(1, 128, 128, "bf16"), STATIC, 0)


def test_footprints_follow_budget_and_tiles(h200: Machine) -> None:
    big, small = gemm(4096, 7168, 2048, "fp8_block"), gemm(64, 1024, 2048, "fp8_block")
    assert h200.costs.footprint(big, STATIC).ctas == 132
    assert h200.costs.footprint(big, Grid(108, kind="static")).ctas == 108
    assert h200.costs.footprint(big, Grid(108, limited_by="ignored", kind="static")).ctas == 132
    assert h200.costs.footprint(small, STATIC).ctas == 8
    case = on(h200, deployment(mode="normal"))
    layer = layer_kernels(case, decode(8, 128, 64), spread(8, 128), 0)
    dispatch = kernel(layer, "dispatch")
    assert dispatch.grid.gang
    assert h200.costs.footprint(dispatch.work, dispatch.grid).ctas == 20
    low = layer_kernels(on(h200, deployment()), decode(8, 128, 64), spread(8, 128), 0)
    send = kernel(low, "dispatch.send")
    assert h200.costs.footprint(send.work, send.grid).ctas == 128  # two experts a CTA


def test_a_collective_takes_the_sms_of_its_channels(h200: Machine) -> None:
    case = on(h200, replace(deployment(), attention_tp=2))
    layer = layer_kernels(case, decode(8, 128, 64), spread(8, 128), 0)
    gather = kernel(layer, "attn.gather")
    taken = h200.costs.footprint(gather.work, gather.grid)
    assert taken.ctas == 24
    assert h200.sm.ctas(taken) == 1  # all registers of an SM: nothing runs beside it there
    alone = [h200.costs.alone(gather.work, gather.grid, sms).ns for sms in (24, 132)]
    assert alone[0] == alone[1]


def test_attention_without_data_is_labelled_and_not_refused(h200: Machine) -> None:
    case = on(h200, deployment("qwen3-30b-a3b"))
    layer = layer_kernels(case, decode(8, 64, 2048), spread(8, 64, 128), 0)
    core = kernel(layer, "attn")
    cost = h200.costs.alone(core.work, core.grid, 132)
    assert (cost.label, cost.rel_error >= 0.4) == ("roofline", True)


@pytest.mark.parametrize(
    ("mode", "batch"), [("low_latency", decode(8, 96, 4000)), ("normal", prefill(8, 1, 2048))]
)
def test_without_tables_no_kernel_is_slower_on_a_gpu_with_more_of_anything(
    h200: Machine, mode: str, batch: Batch
) -> None:
    """Over tables this need not hold (docs/limits.md): they are times of the GPU that was measured."""
    profile, _ = load_profile("h200-8x-ib")
    more = {
        "hbm_gbps": 2 * profile.gpu.hbm_gbps,
        "peak_tflops": {dtype: 2 * peak for dtype, peak in profile.gpu.peak_tflops.items()},
    }
    before = ProfileCosts(profile, {})
    for name, value in more.items():
        gpu = profile.gpu.model_copy(update={name: value})
        after = ProfileCosts(profile.model_copy(update={"gpu": gpu}), {})
        base = on(h200, deployment(mode=mode))
        layer = layer_kernels(base, batch, spread(8, batch.tokens[0]), 0)
        sizes = [one for group in layer.groups.values() for one in group if one.exchange is None]
        times = [
            [costs.alone(one.work, one.grid, 132).ns for one in sizes] for costs in (before, after)
        ]
        assert len(sizes) > 10 and all(b <= a for a, b in zip(*times, strict=True))
        assert sum(times[1]) < sum(times[0])
