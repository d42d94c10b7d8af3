"""Loading scenarios: what is refused, in which words, and what overrides do."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios import ScenarioError, json_schema, library, load
from scenarios.faults import keys_at
from scenarios.resolve import resolve
from scenarios.schema import Decode

DEMO = library()["deepseek-v3-h100-ep72-decode"].read_text()

# what is replaced in the demo scenario, by what, and what the message must hold
REFUSED = [
    ("bach", "batch_per_rank: 256", "bach_per_rank: 256", "did you mean 'batch_per_rank'"),
    ("unit", "kv_tokens: 2048", "kv_tokens: 2k", "kv_tokens = '2k': needs a whole number"),
    ("unit name", "kv_tokens: 2048", "kv_bytes: 2048", "kv_bytes: unknown key"),
    ("nan", "alpha: 0.6", "alpha: .nan", "routing.alpha = nan: needs a finite number"),
    ("infinite", "alpha: 0.6", "alpha: 1e999", "routing.alpha = inf: needs a finite number"),
    ("negative", "alpha: 0.6", "alpha: -1", "routing.alpha = -1"),
    ("zero ranks", "ep: 72,", "ep: 0,", "parallel.ep = 0: needs a whole number"),
    ("float for int", "ep: 72,", "ep: 72.0,", "parallel.ep = 72.0: needs a whole number"),
    ("bool for int", "ep: 72,", "ep: true,", "parallel.ep = true: needs a whole number"),
    ("literal", "power_law", "powerlaw", "did you mean 'power_law'"),
    ("odd SMs", "num_sms: 20", "num_sms: 21", "a multiple of 2"),
    ("section", "parallel:", "paralel:", "did you mean 'parallel'"),
    ("version as number", "0.5.23", "0.5", "runtime.sglang = 0.5: needs text"),
    ("null section", "speculative: {draft_tokens: 0}", "speculative:", "speculative"),
    ("model key", "model: deepseek-v3", "model: {base: x, layers: 3}", "'num_layers'"),
    ("model list", "model: deepseek-v3", "model: [1]", "needs text or a mapping of base"),
    ("no schedule", "[sequential, baseline, sbo, tbo]", "[]", "schedules"),
    (
        "no ops",
        "[sequential,",
        "[{name: mine}, sequential,",
        "schedules.0 = {name: ...}: needs exactly one of: ops",
    ),
    ("env number", "launch: cuda_graph", "env: {A: 1}", "runtime.env.A = 1: needs text"),
    (
        "two phases",
        "phase:",
        "phase:\n  prefill: {tokens_per_rank: 1, sequence_tokens: 1}",
        "phase",
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "words"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_refused_with_place_key_and_value(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in DEMO
    path = tmp_path / "bad.yaml"
    path.write_text(DEMO.replace(old, new, 1))
    with pytest.raises(ScenarioError) as caught:
        load(path)
    message = str(caught.value)
    assert words in message
    file, line, column, _ = message.split(":", 3)
    assert file == str(path)
    assert 1 <= int(line) <= len(DEMO.splitlines()) + 1
    assert int(column) >= 1


def test_library_loads_and_is_named_after_its_questions() -> None:
    assert {
        "deepseek-v3-h100-ep72-decode",
        "deepseek-v3-h100-ep32-prefill",
        "deepseek-v3-h200-ep8-decode",
        "deepseek-v3-h200-ep8-prefill",
        "deepseek-v3-h200-ep2-decode",
        "deepseek-v3-h200-ep2-prefill",
        "tiny",
    } <= set(library())
    for name in library():
        assert load(name).name


def test_unknown_name_gets_a_close_match() -> None:
    with pytest.raises(ScenarioError, match="did you mean 'deepseek-v3-h100-ep72-decode'"):
        load("deepseek-v3-h100-ep72-decod")


def test_overrides_replace_scale_and_extend() -> None:
    scenario = load(
        "deepseek-v3-h100-ep72-decode",
        [
            "phase.decode.batch_per_rank=+20%",
            "model.num_layers=6",
            "schedules=[tbo]",
            "routing.alpha=-50%",
            "shared_experts.waterfill=true",
        ],
    )
    assert scenario.phase.decode == Decode(batch_per_rank=307, kv_tokens=2048)
    assert scenario.model.model_dump(exclude_none=True) == {  # type: ignore[union-attr]
        "base": "deepseek-v3",
        "num_layers": 6,
    }
    assert scenario.schedules == ("tbo",)
    assert scenario.routing.alpha == pytest.approx(0.3)
    assert scenario.shared_experts.waterfill


def test_a_name_tells_what_was_overridden() -> None:
    name = load("tiny").name
    assert (
        load("tiny", ["runtime.step_overhead_us=5"]).name
        == f"{name}, with runtime.step_overhead_us=5"
    )
    assert load("tiny", ["schedules=[tbo]"]).name == name
    assert load("tiny", ["name=mine", "parallel.ep=2"]).name == "mine"


def test_a_relative_override_scales_each_rank_and_defaults() -> None:
    scenario = load(
        "tiny", ["phase.decode.batch_per_rank=[10, 20]", "phase.decode.batch_per_rank=+50%"]
    )
    assert scenario.phase.decode is not None
    assert scenario.phase.decode.batch_per_rank == (15, 30)
    assert load("tiny", ["a2a.num_sms=-50%"]).a2a.num_sms == 10


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("phase.decode.batch=3", "phase.decode.batch: unknown key; allowed: batch_per_rank"),
        ("schedules.7=tbo", "has no element 7; allowed: 0 to 2"),
        ("phase.decode.kv_tokens=many", "phase.decode.kv_tokens = 'many': needs a whole number"),
        ("hardware=+20%", "a relative change needs a number"),
        ("parallel.ep={a: [}", "is not valid YAML"),
        ("parallel.ep", "needs the form KEY=VALUE"),
        ("name.x=1", "is not a mapping"),
        ("²=1", "²: unknown key"),
        ("schedules.²=tbo", "has no element '²'"),
        (f"schedules.{'9' * 5000}=tbo", "has no element"),
        (f"runtime.env{'.a' * 2000}=1", "has more than 32 levels"),
        (f"hardware={'a' * 5000}", "is neither hardware of the library nor a file"),
        ("name=one\nmodel: deepseek-v3", "holds more than one value"),
        ('name="two\\nlines"', "has a line break or another control character"),
        ("parallel.ep=+20%", "parallel.ep = 2: +20% of it rounds to the same"),
        ("routing.alpha=+20%", "routing.alpha = 0.0: +20% of it rounds to the same"),
        ("runtime.other_mode_ranks=+20%", "a relative change needs a number"),
        (f"parallel.ep=+{'9' * 400}%", "needs a whole number"),
    ],
)
def test_bad_overrides_name_the_option(setting: str, words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        resolve(load("tiny", [setting]))
    message = str(caught.value)
    assert message.startswith(f"--set {setting[:200]}")
    assert words in message
    assert len(message) < 1500


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{ep: 2}", "{ep: 2, ep: 4}", "parallel.ep: key given twice (first on line"),
        ("seed: 0", "seed: 0, <<: *a", "is not valid YAML: found undefined alias 'a'"),
        ("seed: 0", "seed: !!python/name:os.system 0", "routing.seed: cannot be read"),
        ("seed: 0", "seed: [0]", "routing.seed = [0]: needs a whole number"),
        ("ep: 2", "ep: 9999999999999999999999", "parallel.ep = 9999999999999999999999: needs"),
        ("name: ", "---\nname: a\n---\nname: ", "is not valid YAML: but found another document"),
        ("name: ", "%YAML 9.9\n---\nname: ", "is not valid YAML: "),
        ("name: Tiny", 'name: "a\\Lb" #', "has a line break or another control character"),
        ("name: ", "1: ", "1: unknown key"),
        ("name: ", "? [a]\n: b\nname: ", "a key must be plain text"),
    ],
)
def test_odd_yaml_is_one_message_with_its_place(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    path = tmp_path / "odd.yaml"
    text = library()["tiny"].read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ScenarioError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:")
    assert words in str(caught.value)


def test_an_anchor_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "anchors.yaml"
    path.write_text(
        library()["tiny"]
        .read_text()
        .replace("batch_per_rank: 16", "batch_per_rank: &n 16")
        .replace("kv_tokens: 64", "kv_tokens: *n")
    )
    assert load(path).phase.decode == Decode(batch_per_rank=16, kv_tokens=16)


def test_the_exported_schema_knows_every_key_and_refuses_others() -> None:
    schema = json_schema()
    assert tuple(schema["properties"]) == keys_at(())
    sections = [schema, *schema["$defs"].values()]
    assert all(
        section["additionalProperties"] is False for section in sections if "properties" in section
    )


def test_a_format_that_the_gpu_has_no_peak_for_is_refused_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "fp4.yaml"
    text = library()["tiny"].read_text()
    path.write_text(f"{text}quantization: {{weights: nvfp4}}\n")
    with pytest.raises(ScenarioError) as caught:
        resolve(load(path))
    line = len(text.splitlines()) + 1
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}:25: quantization.weights = 'nvfp4': computes in fp4")
    assert "h200-2x-nvlink has no gpu.peak_tflops" in message
    assert "allowed: bf16, fp8_block" in message
    assert resolve(load(path, ["hardware=gb200-nvl72"])).deployment.quantization.weights == "nvfp4"
