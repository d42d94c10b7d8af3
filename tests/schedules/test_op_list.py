"""The operation list: stages, yields at the ends, and errors with a mark."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules.caret import GrammarError
from schedules.op_list import format_op_list, join_layers, parse_op_list

DECODE = "P Q | C M G T | Da S | Db X Ca | Cb | O Z"
EXTEND = "P Q C M G T Da | Db X Ca | S Cb O Z"


def test_stages_of_the_decode_list() -> None:
    assert parse_op_list(DECODE) == (
        ("P", "Q"),
        ("C", "M", "G", "T"),
        ("Da", "S"),
        ("Db", "X", "Ca"),
        ("Cb",),
        ("O", "Z"),
    )


def test_spaces_around_the_yield_do_not_matter() -> None:
    assert parse_op_list("P Q|C  M\n|Da") == (("P", "Q"), ("C", "M"), ("Da",))


@pytest.mark.parametrize(
    ("text", "stages_per_layer", "extra"),
    [(DECODE, 5, 1), (EXTEND, 2, 1), ("P | X | Cb O |", 3, 0)],
)
def test_joined_layers_merge_the_ends(text: str, stages_per_layer: int, extra: int) -> None:
    for layers in (1, 2, 7):
        joined = join_layers(parse_op_list(text), layers)
        assert len(joined) == stages_per_layer * layers + extra
    first_joint = joined[stages_per_layer]
    assert first_joint[0 if extra == 0 else len(parse_op_list(text)[-1])] == (1, "P")


@pytest.mark.parametrize(
    ("text", "known", "column", "reason"),
    [
        ("P Q | | X", None, 7, "stage without operations"),
        ("P Q | C Q", None, 9, "twice"),
        ("P Q | 9a", None, 7, "not an operation name"),
        ("P Dx", {"P", "Da"}, 3, "did you mean 'Da'"),
        (" | ", None, 1, "without operations"),
        ("", None, 1, "without operations"),
    ],
)
def test_errors_mark_the_fault(text: str, known: set[str] | None, column: int, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason) as caught:
        parse_op_list(text, known)
    assert caught.value.column == column
    assert str(caught.value).splitlines()[-1] == "    " + " " * (column - 1) + "^"


_NAMES = st.lists(st.from_regex(r"\A[A-Z][a-z]?[0-9]?\Z"), min_size=1, max_size=9, unique=True)


@given(_NAMES, st.data())
def test_print_then_parse_gives_the_same_stages(names: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(names)))))
    bounds = [0, *cuts, len(names)]
    stages = tuple(tuple(names[a:b]) for a, b in pairwise(bounds))
    inner = [stage for stage in stages[1:-1] if not stage]
    if inner or len(stages) == 1:
        stages = (tuple(names),)
    assert parse_op_list(format_op_list(stages)) == stages
