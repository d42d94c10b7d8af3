"""Programs with a fused shared expert give the plain, unfused model's output, wherever its copies go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from executor.production_state import tokens_by_child
from executor.reference_run import Case, Run, run_threads, worst_error
from models.deployment import Batch, Fusion
from models.fused_routing import fused_routing
from models.routing import Routing
from schedules.split import split_batch
from tests.executor.layer_programs import SHAPES, TINY, case, program

pytestmark = pytest.mark.torch

SCHEDULES = {
    "decode": ("sequential", "baseline", "sbo.v1", "tbo"),
    "prefill": ("sequential", "baseline", "tbo"),
}
TRIED = ("decode uneven", "decode one rank idle", "prefill two chunk", "prefill one expert")
RUNS = [(schedule, shape) for shape in TRIED for schedule in SCHEDULES[SHAPES[shape].phase]]
FUSED = Fusion(1, "per_rank")
WATERFILL = Fusion(1, "per_rank", waterfill=True)


def error_of(made: Case, name: str, seed: int) -> float:
    results = run_threads(made, program(name, made), Run("random", seed))
    return worst_error([result.output for result in results], made.expected())


@pytest.mark.parametrize(("schedule", "shape"), RUNS)
def test_a_private_slot_gives_the_unfused_output(schedule: str, shape: str) -> None:
    made = replace(case(shape, 1), fusion=FUSED)
    assert error_of(made, f"{schedule}+fused", 1) < 1e-10


def busy(tokens: int, layers: int = 2) -> Case:
    """Two ranks, prefill, most tokens on the first rank's experts: Waterfill sends copies away."""
    batch = Batch("prefill", ((tokens,), (tokens,)), ((0,), (0,)))
    rng = np.random.default_rng(5)
    skewed = 1.0 / (1 + np.arange(TINY.n_routed_experts))
    ids = [
        np.argsort(-(rng.gumbel(size=(tokens, 8)) + np.log(skewed)), axis=1)[:, :3].astype(np.int32)
        for _ in range(2)
    ]
    return Case(
        TINY, batch, Routing(tuple(ids), 8, 2), split_batch(batch)[2], layers, 5, fusion=WATERFILL
    )


@pytest.mark.parametrize("name", ["sequential", "baseline", "tbo"])
def test_waterfill_gives_the_unfused_output(name: str) -> None:
    made = busy(150)
    home = program(f"{name}+fused", made)
    filled = program(f"{name}+fused+waterfill", made)
    assert [e.bytes for e in home.exchanges] != [e.bytes for e in filled.exchanges]
    assert error_of(made, f"{name}+fused+waterfill", 5) < 1e-10


def test_a_program_of_another_fusion_is_wrong() -> None:
    """The comparison can fail: the shared expert is left out where neither side computes it."""
    made = replace(case("prefill", 1), fusion=Fusion())
    assert error_of(made, "sequential+fused", 1) > 1e-3


@pytest.mark.parametrize("fusion", [FUSED, WATERFILL])
def test_gpu_sets_dispatch_the_fused_ids_and_weigh_the_routed_ones(fusion: Fusion) -> None:
    made = busy(150)
    whole = fused_routing(made.routing, fusion)
    for rank in range(2):
        cut = made.cuts[rank]
        tokens = tokens_by_child(made.batch, made.routing, rank, cut, torch.device("cpu"), fusion)
        assert torch.equal(tokens[""].ids, torch.as_tensor(whole.ids[rank]).long())
        routed = torch.as_tensor(made.routing.ids[rank]).long()
        assert torch.equal(tokens[""].routed, routed)
        assert torch.equal(tokens[""].shared, torch.ones(len(routed), 1))
        assert torch.equal(tokens["a"].routed, routed[: cut.token_index])
        assert torch.equal(tokens["b"].routed, routed[cut.token_index :])


def test_without_a_fused_slot_all_ids_are_routed() -> None:
    made = case("prefill", 1)
    tokens = tokens_by_child(made.batch, made.routing, 0, made.cuts[0], torch.device("cpu"))
    assert torch.equal(tokens[""].ids, tokens[""].routed)
    assert tokens[""].shared.shape == (len(tokens[""].ids), 0)
