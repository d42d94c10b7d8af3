"""Bad input ends with status 1 (2 for usage), one message on standard error, nothing half written."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from scenarios import library

Run = Callable[..., "subprocess.CompletedProcess[str]"]
TINY = library()["tiny"].read_text()

# replaced in the tiny scenario: what, by what, and what the message must say
SCENARIOS = {
    "unknown key": ("batch_per_rank", "bach_per_rank", "did you mean 'batch_per_rank'"),
    "wrong unit": ("kv_tokens: 64", "kv_tokens: 64k", "kv_tokens = '64k': needs a whole number"),
    "nan": ("seed: 0", "alpha: .nan", "routing.alpha = nan: needs a finite number"),
    "negative": ("kv_tokens: 64", "kv_tokens: -64", "kv_tokens = -64"),
    "zero ranks": ("ep: 2", "ep: 0", "parallel.ep = 0"),
    "experts do not divide": ("ep: 2", "ep: 3", "does not divide the 8 physical experts"),
    "nothing to do": ("batch_per_rank: 16", "batch_per_rank: 0", "no rank has a token"),
    "wrong list": ("batch_per_rank: 16", "batch_per_rank: [1, 2, 3]", "has 3 entries for 2 ranks"),
    "unknown schedule": ("baseline, tbo]", "baseline, tbO]", "did you mean 'tbo'"),
    "schedule twice": ("baseline, tbo]", "baseline, baseline]", "is given twice"),
    "unknown machine": ("h200-2x-nvlink", "h200-2x-nvlin", "h200-2x-nvlink"),
    "unknown model": ("base: deepseek-v3", "base: deepseek-v33", "deepseek-v3"),
    "tp does not fit": (
        "{ep: 2}",
        "{ep: 2, attention_tp: 2, attention_dp: 2}",
        "are not the 2 ranks",
    ),
    "no SMs left": ("max_dispatch_tokens_per_rank: 32", "num_sms: 200", "leaves no SM"),
    "no MoE layer": ("num_layers: 4", "num_layers: 1", "has no MoE layer"),
    "unknown runner": ("schedules:", "runtime: {moe_runner: cutlas}\nschedules:", "'cutlass'"),
    "bad operation": ("baseline, tbo]", "{name: mine, ops: P Q | ZZ}]", "unknown operation 'ZZ'"),
    "ops left out": ("baseline, tbo]", "{name: mine, ops: P Q | C}]", "schedules.1 = {name: ..."),
    "no such rules": ("schedules:", "runtime: {sglang: 0.1.2}\nschedules:", "has no rules"),
}


@pytest.mark.parametrize("case", SCENARIOS)
def test_a_bad_scenario_is_one_message(run: Run, tmp_path: Path, case: str) -> None:
    old, new, words = SCENARIOS[case]
    assert old in TINY
    path = tmp_path / "bad.yaml"
    path.write_text(TINY.replace(old, new, 1))
    done = run("compare", str(path), "--html", "report.html", "--json")
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad.yaml"]


@pytest.mark.parametrize("name", ["absent.yaml", ".", "junk.yaml", "bomb.yaml", "nonsense"])
def test_what_is_no_scenario_at_all(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "junk.yaml").write_bytes(bytes(range(256)) * 8)
    names = "abcdefgh"
    (tmp_path / "bomb.yaml").write_text(
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in pairwise(names))
    )
    done = run("compare", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert name in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare",),
        ("compare", "tiny", "--no-such-option"),
        ("compare", "tiny", "--set", "parallel.ep"),
        ("compare", "tiny", "--set", "=3"),
        ("compare", "tiny", "--itl-ms", "inf"),
        ("simulate", "tiny"),
        ("no-such-command",),
        ("view",),
    ],
)
def test_usage_errors_are_status_two(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage:" in done.stderr


# commands that write, and the long work that each of them begins
LONG_WORK = [
    (("compare", "tiny", "--json", "--html"), "moe_overlap.comparison.compare"),
    (("simulate", "tiny", "-s", "tbo", "-o"), "simulator.simulate"),
    (("explain", "tiny", "-o"), "moe_overlap.explanation.explain"),
    (("validate", "tiny", "-s", "tbo", "-o"), "moe_overlap.commands.run.measure"),
    (("run", "tiny", "-s", "tbo", "-o"), "moe_overlap.commands.run.measure"),
]


@pytest.mark.parametrize(("words", "work"), LONG_WORK, ids=[case[0][0] for case in LONG_WORK])
def test_what_cannot_be_written_is_told_before_any_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], work: str
) -> None:
    def begun(*_: object, **__: object) -> None:
        raise AssertionError(f"{work} was called")

    monkeypatch.setattr(work, begun)
    (tmp_path / "file").write_text("")
    for target in ("file/page.html", ".", "/proc/page.html", "x" * 300):
        done = run(*words, target)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
        assert "Traceback" not in done.stderr
    good = "new/timeline.json" if words[0] == "run" else "new/page.html"
    with pytest.raises(AssertionError, match="was called"):
        run(*words, good)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("words", "work", "refused", "written"),
    [
        (
            *LONG_WORK[1],
            ("x.pdf", "x.JSON", "x", "x.json.gz"),
            ".json, .html, .htm, .png, .pftrace",
        ),
        (*LONG_WORK[3], ("x.json", "x.png", "x"), ".html, .htm, .pftrace, .perfetto-trace"),
        (*LONG_WORK[4], ("x.html", "x.pftrace", "x"), ".json"),
    ],
    ids=["simulate", "validate", "run"],
)
def test_an_ending_that_names_no_format_is_refused_before_any_work(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    work: str,
    refused: tuple[str, ...],
    written: str,
) -> None:
    def begun(*_: object, **__: object) -> None:
        raise AssertionError(f"{work} was called")

    monkeypatch.setattr(work, begun)
    for name in refused:
        done = run(*words, f"new/{name}")
        assert (done.returncode, done.stdout) == (1, "")
        wanted = f"error: new/{name}: its ending names no format; allowed: {written}"
        assert done.stderr.startswith(wanted)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("ending", "begins"),
    [(".json", b'{\n "schema"'), (".html", b"<!doctype html>"), (".htm", b"<!doctype html>")],
)
def test_a_timeline_is_written_as_its_ending_says(
    run: Run, tmp_path: Path, ending: str, begins: bytes
) -> None:
    done = run("simulate", "tiny", "-s", "tbo", "-o", f"tbo{ending}")
    assert done.returncode == 0, done.stderr
    content = (tmp_path / f"tbo{ending}").read_bytes()
    assert content.lower().startswith(begins) and b"L0.a.attn" in content


def test_a_trace_is_written_for_its_ending(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("perfetto")
    done = run("simulate", "tiny", "-s", "tbo", "-o", "tbo.pftrace")
    assert done.returncode == 0, done.stderr
    content = (tmp_path / "tbo.pftrace").read_bytes()
    assert content[0] == 0x0A and b"L0.a.attn" in content  # field 1 of a Trace message: its packets


def test_a_file_that_nothing_would_fill_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    for words in (("simulate", "tiny", "-s", "tbo", "--program"), ("view", "tbo.json", "--term")):
        done = run(*words, "-o", "out.json")
        assert (done.returncode, done.stdout) == (2, "")
        assert "Usage:" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_validation_of_nothing_is_refused(run: Run) -> None:
    done = run("validate", "tiny", "--set", "schedules=[sbo]")
    assert done.returncode == 1
    assert done.stderr.startswith("error: tiny: the rules refuse every schedule of it")


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    done = run("simulate", "tiny", "--schedule", "tbo", "-o", "pipe.json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: pipe.json: is not a regular file\n"
    assert (tmp_path / "pipe.json").is_fifo()


def test_a_link_is_written_through(run: Run, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("there.json")
    assert run("simulate", "tiny", "--schedule", "tbo", "-o", "link.json").returncode == 0
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "there.json").read_text().startswith("{")


def test_a_file_that_cannot_be_written_is_called_by_its_own_name(run: Run) -> None:
    done = run("simulate", "tiny", "--schedule", "tbo", "-o", "/proc/timeline.json")
    assert done.returncode == 1
    assert done.stderr.startswith("error: /proc/timeline.json: ")


def test_a_picture_needs_an_ending_that_names_a_format(run: Run, tmp_path: Path) -> None:
    assert run("simulate", "tiny", "--schedule", "tbo", "-o", "tbo.json").returncode == 0
    done = run("view", "tbo.json", "-o", "new/page.pdf")
    assert (done.returncode, done.stdout) == (1, "")
    assert "new/page.pdf: its ending names no format; allowed: .html" in done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["tbo.json"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("name.x=1", "name = 'Tiny layer, decode, two ranks': is not a mapping"),
        ("schedules=[]", "schedules = []: is empty; it needs a list"),
        ("hardware=''", "hardware = '': is empty; it needs text"),
    ],
)
def test_a_setting_names_its_key_and_fault(run: Run, setting: str, words: str) -> None:
    done = run("compare", "tiny", "--set", setting)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: --set {setting}: ")
    assert words in done.stderr


def test_a_folder_without_a_model_is_said_in_words(run: Run) -> None:
    done = run("compare", "tiny", "--set", "model=.")
    assert done.returncode == 1
    assert done.stderr.startswith("error: config.json: config: 'No such file or directory'")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('{"model_type": "glm5_next"}', "model_type: 'glm5_next' is not usable; allowed: deepseek"),
        ('{"hidden_size": 4096}', "model_type: '' is not usable"),
        ('{"model_type": "deepseek_v3", "moe_layer_freq": 2}', "moe_layer_freq: 2 is not usable"),
        ('{"model_type": "qwen3_moe"}', "num_experts: is missing; allowed: a whole number"),
    ],
)
def test_a_config_that_is_not_supported_says_which_field(
    run: Run, tmp_path: Path, config: str, words: str
) -> None:
    (tmp_path / "config.json").write_text(config)
    done = run("compare", "tiny", "--set", "model=config.json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: config.json: ")
    assert words in done.stderr


def test_an_override_is_named_as_the_origin(run: Run) -> None:
    setting = "schedules=[tbo, {name: mine, ops: P Q, delta: 9}]"
    done = run("compare", "tiny", "--set", setting)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: --set {setting}: schedules.1")


def test_view_refuses_what_is_no_timeline(run: Run, tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"schema": 1, "spans": [')
    (tmp_path / "other.json").write_text('{"a": 1}')
    for name in ("half.json", "other.json", "absent.json", "."):
        done = run("view", name)
        assert (done.returncode, done.stdout) == (1, "")
        assert name in done.stderr
        assert "Traceback" not in done.stderr
    (tmp_path / "notes.txt").write_text("notes")
    assert "notes.txt:1:1: is not JSON" in run("view", "notes.txt").stderr
    assert not (tmp_path / "reports").exists()
