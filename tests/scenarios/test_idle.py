"""Keys that change nothing where they stand: refused where they contradict another, told elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scenarios import ScenarioError, library, load
from scenarios.faults import field_at
from scenarios.resolve import Resolved, resolve

DECODE = "tiny"
PREFILL = "deepseek-v3-h200-ep2-prefill"
QWEN = "qwen3-30b-h100-ep8-prefill"
WRITTEN = library()[DECODE].read_text()


def resolved(name: str, *settings: str) -> Resolved:
    return resolve(load(name, settings))


def written(folder: Path, routing: str) -> Path:
    """The tiny scenario with another `routing`, on line 9."""
    path = folder / "own.yaml"
    assert WRITTEN.count("{distribution: uniform, seed: 0}") == 1
    path.write_text(WRITTEN.replace("{distribution: uniform, seed: 0}", routing))
    return path


@pytest.mark.parametrize(
    ("routing", "words"),
    [
        (
            "{alpha: 0.6}",
            "routing.alpha = 0.6: is not read with distribution uniform; allowed: with",
        ),
        ("{histogram: [1, 2]}", "routing.histogram = [1.0, 2.0]: is not read with"),
        ("{path: ids.npy}", "allowed: with distribution file"),
        ("{distribution: power_law, alpha: 1.0, path: ids.npy}", "routing.path = 'ids.npy'"),
        ("{distribution: file, path: x, seed: 3}", "routing.seed = 3: is not read with"),
        ("{distribution: file, path: x, grouped: false}", "routing.grouped = false"),
        ("{distribution: power_law}", "needs routing.alpha, which is missing"),
        ("{distribution: histogram}", "needs routing.histogram, which is missing"),
        ("{distribution: file}", "needs routing.path, which is missing"),
    ],
)
def test_routing_that_contradicts_its_distribution(
    tmp_path: Path, routing: str, words: str
) -> None:
    path = written(tmp_path, routing)
    with pytest.raises(ScenarioError) as caught:
        resolve(load(path))
    line = 1 + path.read_text()[: path.read_text().index(routing)].count("\n")
    assert str(caught.value).startswith(f"{path}:{line}:")
    assert words in str(caught.value)


def test_a_distribution_from_the_command_line_drops_what_the_file_says_beside_it() -> None:
    power_law = "deepseek-v3-h200-ep8-decode"
    assert resolved(power_law, "routing.distribution=uniform").routing.imbalance() < 1.1
    with pytest.raises(ScenarioError, match=r"routing\.alpha = 1\.2: is not read"):
        resolved(power_law, "routing.distribution=uniform", "routing.alpha=1.2")


# scenario, its settings, the keys that change nothing under them
IDLE = [
    (DECODE, ["a2a.num_sms=8"], {"a2a.num_sms"}),
    (DECODE, ["runtime.tbo_token_distribution_threshold=0.3"], {"runtime.tbo_token_distribution_threshold"}),
    (DECODE, ["speculative.draft_tokens=1"], {"speculative.draft_tokens"}),
    (DECODE, ["runtime.env={SGLANG_TBO_DEBUG: '1'}"], {"runtime.env.SGLANG_TBO_DEBUG"}),
    (
        DECODE,
        ["runtime.env={SGLANG_DEEPEP_LL_COMBINE_SEND_NUM_SMS: '8', SGLANG_DISABLE_STATIC_WATERFILL: '1'}"],
        {
            "runtime.env.SGLANG_DEEPEP_LL_COMBINE_SEND_NUM_SMS",
            "runtime.env.SGLANG_DISABLE_STATIC_WATERFILL",
        },
    ),
    (
        DECODE,
        ["a2a={backend: none, mode: normal, num_sms: 8}", "quantization.dispatch=bf16"],
        {"a2a.mode", "a2a.num_sms", "quantization.dispatch"},
    ),
    (
        DECODE,
        ["model.first_k_dense=0", "model.intermediate_size=512"],
        {"model.intermediate_size"},
    ),
    (
        DECODE,
        ["runtime.mem_fraction_static=0.5", "runtime.max_total_tokens=1000000000"],
        {"runtime.max_total_tokens"},
    ),
    (PREFILL, ["a2a.max_dispatch_tokens_per_rank=64"], {"a2a.max_dispatch_tokens_per_rank"}),
    (PREFILL, ["phase.prefill.sequence_tokens=9000"], {"phase.prefill.sequence_tokens"}),
    (
        PREFILL,
        [
            "schedules=[baseline]",
            "runtime.tbo_token_distribution_threshold=0.3",
            "runtime.other_mode_ranks=[1]",
        ],
        {"runtime.tbo_token_distribution_threshold", "runtime.other_mode_ranks"},
    ),
    (QWEN, ["routing.grouped=false"], {"routing.grouped"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "keys"), IDLE)
def test_keys_without_effect_are_named(name: str, settings: list[str], keys: set[str]) -> None:
    assert {idle.key for idle in resolved(name, *settings).idle_keys()} == keys


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        (PREFILL, "a2a.num_sms=12"),
        (PREFILL, "runtime.tbo_token_distribution_threshold=0.3"),
        (PREFILL, "runtime.other_mode_ranks=[1]"),
        (DECODE, "a2a.max_dispatch_tokens_per_rank=64"),
        (DECODE, "speculative.draft_tokens=2"),
        (DECODE, "routing.grouped=false"),
        (DECODE, "model.intermediate_size=512"),
        (DECODE, "runtime.max_total_tokens=99999"),
    ],
)
def test_the_same_keys_where_they_count_are_not(name: str, setting: str) -> None:
    assert resolved(name, setting).idle_keys() == ()


@pytest.mark.parametrize("name", library())
def test_the_library_has_none(name: str) -> None:
    assert resolved(name).idle_keys() == ()


def test_what_is_told_names_value_and_cause() -> None:
    (idle,) = resolved(DECODE, "a2a.num_sms=8").idle_keys()
    assert str(idle) == "a2a.num_sms = 8 has no effect: only normal-mode kernels take it"
    assert field_at(("a2a", "num_sms")) is not None


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (None, "no regular file; allowed: a readable .npy file"),
        (b"{}", "reading magic string"),
        (np.zeros((3, 2), int), "shape [3, 2]; allowed: [32 or more, 2]"),
        (np.zeros((40, 2)), "float64[40, 2]; allowed: one integer array [tokens, k]"),
        (np.full((40, 2), 99), "id 99; allowed: ids from -1 to 7"),
    ],
)
def test_a_file_of_ids_says_file_key_and_cause(
    tmp_path: Path,
    content: bytes | np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None,
    cause: str,
) -> None:
    path = written(tmp_path, "{distribution: file, path: ids.npy}")
    ids = tmp_path / "ids.npy"
    if isinstance(content, bytes):
        ids.write_bytes(content)
    elif content is not None:
        np.save(ids, content)
    with pytest.raises(ScenarioError) as caught:
        resolve(load(path))
    assert f"routing.path = 'ids.npy': {ids}: " in str(caught.value)
    assert cause in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["model=deepseek-v33"], "model = 'deepseek-v33': is neither model of the library nor a file"),
        (["model.base=deepseek-v33"], "did you mean 'deepseek-v3'?"),
        (["hardware=h200-2x-nvlin"], "did you mean 'h200-2x-nvlink'?"),
        (["hardware=."], "hardware = '.': is neither hardware of the library nor a file"),
        (["model.n_group=3"], "model.n_group = 3: does not fit the rest of the model; allowed: a divisor of 8"),
        (["a2a.backend=deepeb"], "a2a.backend = 'deepeb': unknown"),
    ],
)  # fmt: skip
def test_names_and_sizes_point_at_their_key(settings: list[str], words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        resolved(DECODE, *settings)
    assert str(caught.value).startswith(f"--set {settings[0]}: ")
    assert words in str(caught.value)
