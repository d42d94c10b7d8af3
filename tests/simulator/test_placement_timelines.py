"""Timelines worked out by hand: who gets SMs.

The scenes are measurements on H200s (132 SMs) with spin kernels; the measured figure stands beside
the arithmetic. A kernel that waits for room starts 0.4 us after the room appears; a successor on the
same stream is ready 1.8 us after its predecessor's end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from models.machine import Cost, Costs, Footprint, SmResources
from models.work import Grid, Work
from schedules.program import Stream
from simulator import simulate
from tests.simulator.spinning import (
    DYNAMIC,
    GANG,
    STATIC,
    US,
    host,
    kernel,
    machine,
    program,
    span,
    times,
)

LOW_HIGH = (Stream("main"), Stream("alt", -1))


def test_a_later_kernel_waits_until_all_ctas_of_the_earlier_one_are_placed() -> None:
    scene = program([kernel("A", 1056, 100), host(150), kernel("B", 24, 100, "alt")])
    timeline = simulate(scene, machine())
    # A: 1056 / 132 = 8 full waves; the last is placed at 700 and leaves no SM before 800.
    assert times(timeline, "A") == (0.0, 800.0)
    assert times(timeline, "B") == (800.4, 900.4)  # measured: placed at 802
    assert [(w.cause, w.ns, w.culprit) for w in span(timeline, "B").waits] == [
        ("host", 150 * US, None),
        ("sm_wait", 650_400, "A"),
    ]


def test_a_later_kernel_gets_what_the_last_wave_leaves() -> None:
    scene = program([kernel("A", 1000, 100), host(150), kernel("B", 24, 100, "alt")])
    timeline = simulate(scene, machine())
    # 1000 = 7 x 132 + 76: the last wave is placed at 700 and leaves 56 SMs.
    assert times(timeline, "A") == (0.0, 800.0)
    assert times(timeline, "B") == (700.4, 800.4)


def test_a_high_priority_kernel_is_placed_at_the_next_turnover() -> None:
    scene = program(
        [kernel("A", 1056, 100), host(150), kernel("B", 24, 100, "alt")], streams=LOW_HIGH
    )
    timeline = simulate(scene, machine())
    assert times(timeline, "B") == (200.4, 300.4)  # measured: 201
    # A has 1056 - 264 = 792 CTAs left at 200: 108 then, and from 300 on 132 a wave;
    # (792 - 108) / 132 = 5.2, so 6 more waves from 300 on.
    assert times(timeline, "A") == (0.0, 900.0)  # measured: 902


def test_a_gang_counts_as_high_priority_on_any_stream() -> None:
    scene = program([kernel("A", 1056, 100), host(150), kernel("B", 24, 100, "alt", GANG)])
    assert times(simulate(scene, machine()), "B") == (200.4, 300.4)  # measured: 201
    scene = program([kernel("A", 3000, 20), host(55), kernel("B", 24, 100, "alt", GANG)])
    assert times(simulate(scene, machine()), "B") == (60.4, 160.4)  # measured: 61


def test_a_waiting_kernel_wins_the_boundary_between_persistent_kernels() -> None:
    scene = program(
        [
            kernel("A1", 132, 500, grid=STATIC),
            kernel("A2", 132, 500, grid=STATIC),
            host(150),
            kernel("B", 24, 300, "alt"),
        ]
    )
    timeline = simulate(scene, machine())
    assert times(timeline, "B") == (500.4, 800.4)  # measured: 500
    # A2 is ready at 500 + 1.8 and finds 108 SMs; its other 24 CTAs start at 800.4 + 0.4 and
    # run their full list of 500.
    assert times(timeline, "A2") == (501.8, 1300.8)  # measured: 502, 801, 1301
    assert [(s.cause, s.ns, s.culprit) for s in span(timeline, "A2").stalls] == [
        ("sm_wait", 299_000, "B")
    ]
    resident = next(c for c in timeline.counters if c.name == "sms_resident")
    # 24 + 108 until 800.4, then all of A2, then from 1001.8 its late 24 alone.
    assert resident.points[1:] == ((500_000, 24), (501_800, 132), (1_001_800, 24), (1_300_800, 0))


def test_notify_and_transfer_wait_for_a_boundary_each() -> None:
    gemms = [kernel(f"A{i}", 132, 500, grid=STATIC) for i in range(4)]
    transfer = [kernel("notify", 24, 1, "alt"), kernel("transfer", 24, 300, "alt")]
    timeline = simulate(program([*gemms, host(150), *transfer]), machine())
    assert times(timeline, "notify") == (500.4, 501.4)  # measured: 500
    # notify's successor is ready at 501.4 + 1.8 = 503.2; A1 took all SMs at 501.8 until 1001.8.
    assert times(timeline, "transfer") == (1002.2, 1302.2)  # measured: 1003
    assert span(timeline, "transfer").ready_ns == 503_200


def test_with_an_sm_budget_nothing_waits() -> None:
    gemms = [kernel(f"A{i}", 132, 500, grid=Grid(108, kind="static")) for i in range(4)]
    other = [kernel("N", 24, 300, "alt"), kernel("T", 24, 300, "alt")]
    scene = program([*gemms, host(150), *other])
    timeline = simulate(scene, machine())
    assert times(timeline, "N") == (150.0, 450.0)
    assert times(timeline, "T") == (451.8, 751.8)  # measured: 451
    # 132 tiles on 108 CTAs are two tiles for some: 1000 alone.
    assert times(timeline, "A1") == (1001.8, 2001.8)


def test_a_kernel_in_a_green_context_stays_on_its_sms() -> None:
    # 16 CTAs of 128 threads fit an SM; on 100 SMs that is 1600 at once.
    partition = Grid(100, limited_by="green_context")
    steps = [
        kernel("A", 3200, 50, grid=partition, smem_bytes=0),
        host(10),
        kernel("B", 32, 30, "alt", GANG),
    ]
    timeline = simulate(program(steps), machine())
    assert times(timeline, "A") == (0.0, 100.0)
    assert span(timeline, "A").sms == 100
    assert times(timeline, "B") == (10.0, 40.0)


def test_a_kernel_that_ignores_its_budget_takes_every_sm() -> None:
    steps = [kernel("A", 132, 50, grid=Grid(100, limited_by="ignored")), host(10)]
    timeline = simulate(program([*steps, kernel("B", 32, 30, "alt", GANG)]), machine())
    assert span(timeline, "A").sms == 132
    assert times(timeline, "B") == (50.4, 80.4)


def test_a_gang_that_does_not_fit_holds_the_head() -> None:
    streams = (Stream("main"), Stream("alt", -1), Stream("third"))
    steps = [
        kernel("A", 120, 500),
        host(100),
        kernel("B", 24, 200, "alt", GANG),
        host(20),
        kernel("C", 8, 100, "third"),
    ]
    timeline = simulate(program(steps, streams=streams), machine())
    assert times(timeline, "B") == (500.4, 700.4)  # measured: both start at 500
    assert times(timeline, "C") == (500.4, 600.4)
    assert span(timeline, "C").waits[-1].ns == 380_400  # beside 12 free SMs


def test_a_plain_kernel_takes_what_is_free_and_the_rest_later() -> None:
    steps = [kernel("A", 120, 500), host(100), kernel("B", 24, 200, "alt")]
    timeline = simulate(program(steps, streams=LOW_HIGH), machine())
    # 12 CTAs at 100 (measured: 99), the other 12 on the same SMs at 300 (measured: 299).
    assert times(timeline, "B") == (100.0, 500.0)
    assert span(timeline, "B").sms == 12


def test_small_ctas_share_sms_with_large_ones() -> None:
    steps = [kernel("A", 132, 500), kernel("B", 24, 10, "alt", smem_bytes=20_000)]
    timeline = simulate(program(steps), machine())
    # 204800 + 20000 bytes fit the 233472 of an SM.
    assert times(timeline, "A") == (0.0, 500.0)
    assert times(timeline, "B") == (0.0, 10.0)
    steps[1] = kernel("B", 24, 10, "alt", smem_bytes=30_000)
    assert times(simulate(program(steps), machine()), "B") == (500.4, 510.4)


@dataclass(frozen=True)
class Saturated:
    """Kernels of more than 1000 CTAs wait for HBM: 90 us on however many SMs."""

    below: Costs

    def alone(self, work: Work, grid: Grid, sms: int) -> Cost:
        cost = self.below.alone(work, grid, sms)
        return replace(cost, ns=90 * US) if work.dim("ctas") > 1000 else cost

    def footprint(self, work: Work, grid: Grid) -> Footprint:
        return self.below.footprint(work, grid)


def test_a_kernel_that_waits_for_hbm_loses_nothing_beside_a_few_large_ctas() -> None:
    # 16 CTAs of 14336 bytes fit an SM, two beside one of B's on 24 of them: 1776 of 2112 at once, which
    # would fill 111 SMs. 30000 CTAs are 17 waves of these, in as much time as on all SMs (x1.07 measured
    # of silu beside a dispatch on 14 SMs, where the share of the CTAs is x1.10 and HBM's x1.06).
    on_hbm = replace(machine(), costs=Saturated(machine().costs))
    steps = [kernel("B", 24, 500, "alt", GANG), kernel("A", 30000, 6, smem_bytes=14_336)]
    timeline = simulate(program(steps), on_hbm)
    assert times(timeline, "A") == (0.0, 90.0)
    # Alone CTAs that take as long wherever they run have 17 waves of 6.
    assert times(simulate(program(steps), machine()), "A") == (0.0, 102.0)


def test_a_dynamic_kernel_loses_only_the_share_of_the_sms_that_it_lacks() -> None:
    steps = [kernel("B", 24, 300, "alt"), kernel("A", 6600, 10, grid=DYNAMIC)]
    timeline = simulate(program(steps), machine())
    # 108 CTAs pull 108 tiles every 10 us; 24 more join at 300 + 0.4. 6600 - 30 x 108 = 3360 tiles are
    # left at 300; 25 rounds of 108 + 24 leave 60, which the first to look, at 550, finish at 560.
    assert times(timeline, "A") == (0.0, 560.0)  # 500 + 24 x 300 / 132 = 554.5 without rounding
    assert span(timeline, "A").sms == 132
    resident = next(c for c in timeline.counters if c.name == "sms_resident")
    # 48 of the 108 find no tile at 550, the 24 at 550.4.
    assert resident.points[-3:] == ((550_000, 84), (550_400, 60), (560_000, 0))


def test_ctas_of_a_static_kernel_leave_after_their_last_tile() -> None:
    # 150 tiles on 132 CTAs: 18 CTAs have two, the others leave at 50.
    steps = [kernel("A", 150, 50, grid=STATIC), host(10), kernel("B", 24, 30, "alt", GANG)]
    timeline = simulate(program(steps), machine())
    assert times(timeline, "A") == (0.0, 100.0)
    assert times(timeline, "B") == (50.4, 80.4)


def test_a_static_kernel_moves_as_many_bytes_for_each_of_its_tiles() -> None:
    # 150 tiles of 1 MB on 132 CTAs: 132 in the first 50 us, 18 in the others.
    steps = [kernel("A", 150, 50, grid=STATIC, read_bytes=150_000_000)]
    timeline = simulate(program(steps), machine())
    hbm = next(c for c in timeline.counters if c.name == "hbm_gbps").points
    assert hbm == ((0, 2640.0), (50_000, 360.0), (100_000, 0.0))


def test_even_one_cta_waits_for_the_end_of_a_persistent_kernel() -> None:
    steps = [kernel("A", 6600, 10, grid=DYNAMIC), host(5), kernel("B", 1, 10, "alt")]
    timeline = simulate(program(steps, streams=LOW_HIGH), machine())
    assert times(timeline, "B") == (500.4, 510.4)


def test_an_elementwise_kernel_lets_others_in_at_its_next_turnover() -> None:
    # 16 CTAs of 128 threads fit an SM: 2112 at once, 30000 CTAs are 15 waves of 6 us.
    steps = [kernel("A", 30000, 6, smem_bytes=0), host(20), kernel("B", 24, 100, "alt", GANG)]
    timeline = simulate(program(steps), machine())
    assert times(timeline, "B") == (24.4, 124.4)
    # At 24 A has 30000 - 4 x 2112 = 21552 left. 200 KB CTAs leave room for threads: B's SMs still take
    # (2048 - 128) / 128 = 15 of A's CTAs each. So A places 2112 - 24 = 2088 a wave until 126, and
    # 24 + 2088 x 11 > 21552 > 2088 x 10: 11 waves.
    assert times(timeline, "A") == (0.0, 24.0 + 11 * 6)


def test_equal_priority_and_time_goes_by_host_order() -> None:
    steps = [kernel("A", 132, 100, "alt"), kernel("B", 132, 100, "main")]
    timeline = simulate(program(steps), machine())
    assert times(timeline, "A") == (0.0, 100.0)
    assert times(timeline, "B") == (100.4, 200.4)


def test_a_gang_passes_nobody_that_became_ready_with_it() -> None:
    steps = [kernel("A", 132, 100), kernel("B", 24, 50, "alt", GANG)]
    timeline = simulate(program(steps, streams=(Stream("main"), Stream("alt"))), machine())
    assert times(timeline, "A") == (0.0, 100.0)
    assert times(timeline, "B") == (100.4, 150.4)
    # Launched first, or on a stream of higher priority, it is placed first.
    timeline = simulate(program(steps[::-1]), machine())
    assert times(timeline, "B") == (0.0, 50.0)
    timeline = simulate(program(steps, streams=LOW_HIGH), machine())
    assert times(timeline, "B") == (0.0, 50.0)


def test_late_ctas_of_a_static_kernel_run_faster_when_few_are_left() -> None:
    steps = [kernel("B", 24, 300, "alt"), kernel("A", 132, 500, grid=STATIC)]
    timeline = simulate(program(steps), machine(static_tail=0.0625))
    # a = 1/16. 108 of 132 CTAs: (a + (1 - a) (108/132)^4)^(1/4) = 0.83316 -> they would need
    # 416.58; 24 join at 300.4, from then on all 132 run at full length:
    # 108 have 1 - 300.4 / 416.58 = 0.27889 left, 139.44 us -> 439.84.
    # The other 24 have done 139.44 / 500 = 0.27889 and go on with 24 of 132:
    # (a + (1 - a) (24/132)^4)^(1/4) = 0.50205, so 0.72111 x 500 x 0.50205 = 181.0 -> 620.9.
    start, end = times(timeline, "A")
    assert start == 0.0
    assert abs(end - 620.9) < 0.2


def test_even_a_cta_that_would_fit_waits_until_the_earlier_kernel_is_placed() -> None:
    steps = [kernel("A", 396, 100), host(50), kernel("B", 1, 10, "alt", smem_bytes=1024)]
    # A: 3 x 132; B fits beside its CTAs, but the last of them is placed at 200 only.
    assert times(simulate(program(steps), machine()), "B") == (200.4, 210.4)  # so on the H200
    # In a part of 100 SMs A has no use for the others, and B need not wait.
    steps[0] = kernel("A", 396, 100, grid=Grid(100, limited_by="green_context"))
    assert times(simulate(program(steps), machine()), "B") == (50.0, 60.0)


def test_a_small_cta_on_an_idle_sm_keeps_a_large_one_off() -> None:
    sm = SmResources(carveouts=(8_192, 32_768, 233_472))
    small = kernel("timer", 1, 100, "alt", smem_bytes=1024)
    scene = program([small, kernel("A", 264, 40, grid=STATIC)])
    # 16 CTAs of 128 threads and 1 KB fit an SM, so it is set to 32 KB and takes none of 200 KB: 131 of
    # A's CTAs start at 0 and have two tiles; the last finds room when they leave, at 80.
    timeline = simulate(scene, machine(sm=sm))
    assert times(timeline, "A") == (0.0, 160.0)  # on the H200 the same: 131 at once
    # With all of it always there, the timer shares its SM.
    assert times(simulate(scene, machine()), "A") == (0.0, 80.0)
    # A CTA that comes second finds the SM set by the first.
    scene = program([kernel("A", 264, 40, grid=STATIC), small])
    assert times(simulate(scene, machine(sm=sm)), "timer") == (0.0, 100.0)
