"""A host probed beside a case takes the place of the profile's, with what the probes leave open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.host import (
    HostProbe,
    beside,
    middle_of,
    moved,
    on_host,
    probed,
    shared_out,
    slowest,
    with_host,
)
from models.machine import HostCosts
from models.profile import load_machine

PROFILE = HostCosts((("gemm", 100), ("norm", 100), ("notify", 200), ("torch", 40)), 0.24)


def probe(spread: float = 0.0, **ns: int) -> HostProbe:
    return HostProbe(tuple(ns.items()), spread)


def test_what_was_not_timed_is_scaled_as_the_rest() -> None:
    host, ratio = with_host(PROFILE, {"gemm": 50, "norm": 70, "other": 9})
    assert ratio == 0.6
    assert dict(host.by_class) == {"gemm": 50, "norm": 70, "notify": 120, "torch": 24, "other": 9}
    assert with_host(PROFILE, {}) == (PROFILE, None)


def test_a_librarys_call_is_shared_out_over_its_launches() -> None:
    """A combine call of 80 is two launches of 40; a dispatch call of 100 a notify of 40, and the 60 that
    are left in a layout and a transfer."""
    assert shared_out({"combine": 80, "dispatch_call": 100}) == {
        "combine": 40, "notify": 40, "layout": 30, "dispatch": 30,
    }  # fmt: skip
    by_launch = {"combine": 80, "notify": 20}
    assert shared_out(by_launch) == by_launch
    host, ratio = with_host(PROFILE, {"combine": 80})
    assert (host.ns("notify"), ratio) == (40, 0.2)


def test_a_probe_is_its_runs_median_and_how_much_their_speed_changes() -> None:
    runs = [{"gemm": 100 * speed, "norm": 50 * speed} for speed in range(1, 12)]
    found = probed(runs)
    assert dict(found.ns) == {"gemm": 600, "norm": 300}
    assert found.spread == pytest.approx((10 - 2) / 6 / 2, abs=1e-3)
    assert probed([{"gemm": 7}] * 3).spread == 0.0
    with pytest.raises(ValueError, match="one run or more"):
        probed([])


def test_a_kind_that_is_slow_once_is_no_change_of_the_hosts_speed() -> None:
    runs = [{"gemm": 10, "norm": 10, "add": 10, "event": 10}] * 4
    runs = [*runs, {"gemm": 90, "norm": 10, "add": 10, "event": 10}]
    assert probed(runs).spread == 0.0


def test_the_slowest_rank_is_slower_in_most_kinds_of_launch() -> None:
    """One call that waits for a peer makes no rank slow: 50, 30 and 9000 ns are a faster host than 60,
    36 and 300."""
    waits, slower = probe(gemm=50, norm=30, dispatch_call=9000), probe(gemm=60, norm=36, dispatch_call=300)  # fmt: skip
    assert slowest([waits, slower]) is slower
    assert slowest([slower, waits]) is slower
    still, other = probe(gemm=100, norm=100), probe(gemm=100, norm=100)
    assert slowest([still, other]) is still
    assert slowest([probe(), slower]) is slower


@given(st.lists(st.integers(1000, 10**6), min_size=1, max_size=5))
def test_a_host_that_is_slower_in_every_kind_is_the_slowest(speeds: list[int]) -> None:
    ranks = [probe(gemm=4 * ns, norm=3 * ns, event=ns) for ns in speeds]
    assert slowest(ranks) is ranks[speeds.index(max(speeds))]


def test_an_empty_probe_does_not_count_and_probes_of_other_kinds_tell_no_change() -> None:
    once, none = probe(gemm=200, norm=200), probe()
    assert beside(PROFILE, [once, none]) == beside(PROFILE, [once])
    assert beside(PROFILE, [none, none]) == (PROFILE, None)
    host, _ = beside(PROFILE, [probe(gemm=100), probe(norm=300)])
    assert host.error == PROFILE.error
    partly = [probe(gemm=90, norm=5), probe(gemm=110)]
    assert beside(PROFILE, partly)[0].error == pytest.approx(0.1)


def test_probes_between_repeats_tell_the_middle_host_and_how_far_it_may_be_off() -> None:
    """Of seven, five alike: the two that were disturbed move the median by nothing, and from the 10th to the
    90th percentile the speeds reach from 1 to 2."""
    ns = (100, 100, 200, 100, 100, 100, 200)
    probes = [probe(gemm=n, norm=n) for n in ns]
    host, ratio = beside(PROFILE, probes)
    assert (ratio, host.ns("gemm")) == (1.0, 100)
    assert host.error == pytest.approx((2 - 1) / 2 / 6**0.5)


def test_the_profiles_error_gives_way_to_what_two_probes_leave_open() -> None:
    """90 and 110 are 10 % from their middle."""
    still = [probe(gemm=50, norm=50), probe(gemm=50, norm=50)]
    host, ratio = beside(PROFILE, still)
    assert (ratio, host.error) == (0.5, 0.0)
    slower = [probe(0.02, gemm=90, norm=90), probe(0.04, gemm=110, norm=110)]
    host, ratio = beside(PROFILE, slower)
    assert (ratio, host.ns("gemm")) == (1.0, 100)
    assert host.error == pytest.approx((0.1**2 + 0.04**2) ** 0.5)
    one, _ = beside(PROFILE, slower[:1])
    assert one.error == PROFILE.error
    assert beside(PROFILE, []) == (PROFILE, None)


@given(st.integers(1000, 10**6), st.integers(1000, 10**6))
def test_probes_in_either_order_say_the_same(first: int, last: int) -> None:
    pair = [probe(gemm=first), probe(gemm=last)]
    assert moved(pair) == pytest.approx(moved(pair[::-1]))
    assert moved(pair) == pytest.approx(abs(first - last) / (first + last))
    assert middle_of(pair) == middle_of(pair[::-1])


def test_only_the_host_of_a_machine_is_another() -> None:
    machine = load_machine("h200-2x-nvlink-measured")
    own = dict(machine.host.by_class)
    same, ratio = on_host(machine, [HostProbe((("gemm", own["gemm"]), ("norm", own["norm"])))] * 2)
    assert ratio == 1.0
    assert dict(same.host.by_class) == own
    assert same.costs is machine.costs
    assert on_host(machine, ()) == (machine, None)
