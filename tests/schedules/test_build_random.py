"""Any batch, any routing: built programs are whole, ordered by their data, and pass lint."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from models.deployment import Batch, Phase
from models.routing import RoutingSpec, route
from schedules.builders import build
from schedules.builders.placing import check_flow
from schedules.builders.request import Fold
from schedules.lint import lint
from tests.models.layer_cases import deployment

RANKS = 4
SINGLE = ["sequential", "baseline", "sbo.v1", "sbo.v2", "sbo.v3", "sbo.v4"]


@st.composite
def batches(draw: st.DrawFn, phase: Phase) -> Batch:
    """Ragged sequences, some ranks without any, but not all."""
    lens = st.just(1) if phase == "decode" else st.integers(1, 700)
    ranks = [draw(st.lists(lens, max_size=5)) for _ in range(RANKS)]
    if not any(ranks):
        ranks[0] = [1]
    prefix = [[draw(st.integers(0, 300)) for _ in lens] for lens in ranks]
    return Batch(phase, tuple(map(tuple, ranks)), tuple(map(tuple, prefix)))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_built_programs_are_sound(data: st.DataObject) -> None:
    phase: Phase = data.draw(st.sampled_from(("decode", "prefill")))
    mode = "low_latency" if phase == "decode" else "normal"
    base = deployment("deepseek-v2-lite", ep=RANKS, mode=mode)
    batch = data.draw(batches(phase))
    alpha = data.draw(st.sampled_from([0.0, 1.2]))
    routing = route(RoutingSpec("power_law", alpha), batch.tokens, base.model)
    names = [*SINGLE, "tbo"] if phase == "decode" else ["sequential", "baseline", "tbo"]
    folds: tuple[Fold, ...] = (True, False, "exact")
    built = build(
        data.draw(st.sampled_from(names)),
        base,
        batch,
        routing,
        layers=2,
        fold=data.draw(st.sampled_from(folds)),
        whole_step=data.draw(st.booleans()),
        allow_refused=True,
    )
    assert built.ranks == tuple(range(RANKS))
    assert [str(item) for item in lint(built) if item.severity != "info"] == []
    for cls in built.classes:
        check_flow(cls.ops)
        assert [op.name for op in cls.ops] == [op.name for op in built.classes[0].ops]
