"""A refusal by memory says what would fit, and that fits."""

from __future__ import annotations

import re

import moe_overlap as mo

DECODE = "deepseek-v3-h200-ep8-decode"
PREFILL = "deepseek-v3-h200-ep8-prefill"


def _refusal(name: str, *sets: str) -> str | None:
    """The reason of the only schedule's refusal by memory."""
    scenario = mo.load(name, ["schedules=[baseline]", *sets])
    (row,) = mo.compare(scenario, fidelity="fast").document()["schedules"]
    refused = row["refused"]
    assert refused is None or refused["rule"] == "memory"
    return refused and str(refused["reason"])


def test_the_named_batch_fits_and_one_more_does_not() -> None:
    sets = ("model=glm-4.5", "phase.decode.kv_tokens=16384")
    reason = _refusal(DECODE, *sets, "phase.decode.batch_per_rank=96")
    assert reason is not None
    found = re.search(r"too much; the largest batch per rank that fits is (\d+)$", reason)
    assert found, reason
    size = int(found[1])
    assert _refusal(DECODE, *sets, f"phase.decode.batch_per_rank={size}") is None
    assert _refusal(DECODE, *sets, f"phase.decode.batch_per_rank={size + 1}") is not None


def test_in_prefill_about_so_many_tokens_fit() -> None:
    """Activations follow what the routing sends, which other tokens draw anew."""
    fraction = "runtime.memory_fraction=0.8"
    reason = _refusal(PREFILL, fraction, "phase.prefill.tokens_per_rank=131072")
    assert reason is not None
    found = re.search(r"too much; about ([\d,]+) tokens per rank fit$", reason)
    assert found, reason
    size = int(found[1].replace(",", ""))
    at = "phase.prefill.tokens_per_rank={}".format
    assert _refusal(PREFILL, fraction, at(round(0.97 * size))) is None
    assert _refusal(PREFILL, fraction, at(round(1.03 * size))) is not None


def test_where_no_batch_fits_the_weights_are_named() -> None:
    reason = _refusal(DECODE, "model.num_layers=200")
    assert reason is not None
    found = re.search(
        r"needs ([\d.]+) GiB of the ([\d.]+) GiB .*; no batch fits beside ([\d.]+) GiB of weights "
        r"and ([\d.]+) of exchange buffers$",
        reason,
    )
    assert found, reason
    needed, limit, weights, buffers = map(float, found.groups())
    assert limit < weights + buffers < needed
