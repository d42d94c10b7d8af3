"""Launch commands become scenarios: what is used, what is not, and what contradicts itself."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import moe_overlap as mo

Run = Callable[..., "subprocess.CompletedProcess[str]"]
DECODE = """SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=256 NCCL_DEBUG=INFO \\
python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3-0324 --trust-remote-code \\
  --tp 16 --dp-size 16 --enable-dp-attention --moe-a2a-backend deepep --deepep-mode low_latency \\
  --enable-two-batch-overlap --disaggregation-mode decode --max-running-requests 2048 \\
  --ep-num-redundant-experts=32 --enable-eplb --kv-cache-dtype fp8_e4m3 --host 0.0.0.0 --nnodes 2"""
PREFILL = """python3 -m sglang.launch_server --model Qwen/Qwen3-30B-A3B-FP8 --tp-size 8 --dp 8
 --enable-dp-attention --moe-a2a-backend deepep --deepep-config
 '{"normal_dispatch": {"num_sms": 24}, "normal_combine": {"num_sms": 24}}'
 --chunked-prefill-size 65536 --disable-cuda-graph --tbo-token-distribution-threshold 0.3"""


def _scenario(run: Run, command: str, folder: Path, *options: str) -> mo.Scenario:
    done = run(
        "scenario", "--from-flags", command, "--hardware", "h200-8x-ib", *options, "-o", "it.yaml"
    )
    assert done.returncode == 0, done.stderr
    return mo.load(folder / "it.yaml")


def test_a_decode_server(run: Run, tmp_path: Path) -> None:
    found = _scenario(run, DECODE, tmp_path)
    resolved = mo.resolve(found)
    deployment = resolved.deployment
    assert deployment.model.name == "deepseek-v3"
    assert (deployment.ep_size, deployment.attention_dp, deployment.attention_tp) == (16, 16, 1)
    assert deployment.experts_per_rank == 18
    assert deployment.a2a.max_dispatch_tokens_per_rank == 256
    assert (deployment.quantization.weights, deployment.quantization.kv_cache) == (
        "fp8_block",
        "fp8",
    )
    assert resolved.batch.new_tokens == ((1,) * 128,) * 16  # 2048 requests over 16 ranks
    assert found.schedules == ("baseline", "tbo")


def test_a_prefill_server(run: Run, tmp_path: Path) -> None:
    found = _scenario(run, PREFILL, tmp_path, "--phase", "prefill", "--tokens", "1024")
    deployment = mo.resolve(found).deployment
    assert deployment.model.name == "qwen3-30b-a3b"
    assert (deployment.a2a.num_sms, deployment.a2a.mode) == (24, "normal")
    assert found.phase.prefill is not None
    assert found.phase.prefill.tokens_per_rank == 8192  # 65536 over 8 ranks
    assert (found.runtime.launch, found.runtime.tbo_token_distribution_threshold) == ("eager", 0.3)
    assert found.schedules == ("baseline", "sbo", "tbo")


def test_the_published_prefill_command(run: Run, tmp_path: Path) -> None:
    """The flags of sgl-project/sglang#6017, whose DeepEP configuration is a file."""
    (tmp_path / "deepep.json").write_text(
        '{"normal_dispatch": {"num_sms": 96}, "normal_combine": {"num_sms": 96}}'
    )
    command = (
        "MC_TE_METRIC=true python3 -m sglang.launch_server --model-path /dev/shm/DeepSeek-V3-0324 "
        "--disaggregation-mode prefill --tp-size 32 --dp-size 32 --enable-dp-attention "
        "--moe-a2a-backend deepep --enable-two-batch-overlap --deepep-mode normal "
        "--mem-fraction-static 0.85 --chunked-prefill-size 524288 --max-running-requests 8192 "
        "--max-total-tokens 131072 --ep-num-redundant-experts 32 --deepep-config deepep.json"
    )
    found = _scenario(run, command, tmp_path, "--tokens", "4096")
    assert found.phase.prefill is not None
    assert (found.phase.prefill.tokens_per_rank, found.a2a.num_sms) == (16384, 96)
    assert (found.runtime.mem_fraction_static, found.runtime.max_total_tokens) == (0.85, 131072)


def test_text_of_a_command_comes_back_as_it_was(run: Run, tmp_path: Path) -> None:
    text = 'a: "b" # {c}, \\d'
    found = _scenario(run, f"SGLANG_NOTE='{text}' {BASE}", tmp_path)
    assert found.runtime.env == {"SGLANG_NOTE": text}


def test_the_servers_kv_pool(run: Run, tmp_path: Path) -> None:
    pool = " --mem-fraction-static 0.85 --max-total-tokens 131072"
    runtime = _scenario(run, DECODE + pool, tmp_path, "--tokens", "512").runtime
    assert (runtime.mem_fraction_static, runtime.max_total_tokens) == (0.85, 131072)
    done = run("scenario", "--from-flags", DECODE + pool, "--hardware", "h200-8x-ib")
    assert (done.returncode, done.stdout) == (1, "")  # 128 sequences of 2049 tokens
    assert "needs the KV cache of 262,272 tokens, the pool holds 131,072" in done.stderr
    own = run("scenario", "--from-flags", DECODE, "--hardware", "h200-8x-ib")
    assert "# Assumed: KV cache of the batch alone" in own.stdout


def test_what_has_no_place_is_listed(run: Run) -> None:
    done = run("scenario", "--from-flags", DECODE, "--hardware", "h200-8x-ib")
    for word in ("--trust-remote-code", "--host 0.0.0.0", "--nnodes 2", "NCCL_DEBUG=INFO"):
        assert f"not used: {word}\n" in done.stderr
        assert f"# Not used: {word}\n" in done.stdout
    assert "launch_server" not in done.stdout
    assert "# Assumed: sequences of 2048 tokens\n" in done.stdout


BASE = "--model deepseek-ai/DeepSeek-V3 --tp 16 --dp 16 --enable-dp-attention --moe-a2a-backend deepep "


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (BASE + "--enforce-shared-experts-fusion --disable-shared-experts-fusion", "contradict"),
        (
            BASE.replace("--moe-a2a-backend deepep", "--enable-two-batch-overlap").replace(
                "--dp 16 --enable-dp-attention ", ""
            ),
            "--moe-a2a-backend none and no --enable-dp-attention contradict",
        ),
        (
            BASE.replace("deepep", "megamoe") + "--enable-single-batch-overlap",
            "--enable-single-batch-overlap and --moe-a2a-backend megamoe contradict",
        ),
        (
            BASE.replace("deepep", "deepep_v2") + "--enforce-shared-experts-fusion",
            "--moe-a2a-backend deepep_v2 contradict",
        ),
        (BASE + "--ep-size 8", "--ep-size = 8: contradicts --tp-size 16"),
        (BASE.replace("--enable-dp-attention ", ""), "--dp-size = 16: makes replicas"),
        (BASE.replace("--dp 16", "--dp 5"), "--dp-size = 5: does not divide --tp-size 16"),
        (BASE + "--tp-size 8", "--tp-size = 8: is given twice, first as 16"),
        (BASE + "--deepep-mode low-latency", "did you mean 'low_latency'?"),
        (BASE + "--max-running-requests many", "--max-running-requests = 'many': cannot be read"),
        (BASE + "--enable-eplb yes", "--enable-eplb = 'yes': takes no value"),
        (BASE + "--deepep-config {}x", "JSON, or a file of it that is here"),
        (BASE + "--deepep-config 3", "--deepep-config = '3': gives dispatch and combine no common"),
        (
            BASE + '--deepep-config \'{"normal_dispatch": {"num_sms": 8}}\'',
            "no common number of SMs",
        ),
        ("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=12x " + BASE, "'12x': is no whole number"),
        (BASE + "--tp-size 0", "--tp-size = 0: is given twice"),
        (BASE.replace("--tp 16 --dp 16", "--tp 0 --dp 0"), "--tp-size = 0"),
        (
            BASE + "--mem-fraction-static 85",
            "--mem-fraction-static 85: runtime.mem_fraction_static = 85",
        ),
        (BASE + "--mem-fraction-static nan", "--mem-fraction-static = 'nan': cannot be read"),
        (
            BASE.replace("DeepSeek-V3", "Llama-3"),
            "--model-path = 'deepseek-ai/Llama-3': is no folder",
        ),
        (BASE + "--disaggregation-mode prefill --phase", "takes one value"),
        ("--model 'deepseek", "cannot be read as a shell does"),
        ("python server.py", "has no flag"),
    ],
)
def test_a_bad_command_is_one_message(run: Run, flags: str, message: str) -> None:
    if message == "takes one value":
        flags = BASE + "--max-running-requests"
    done = run("scenario", "--from-flags", flags, "--hardware", "h200-8x-ib")
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "options", "origin"),
    [
        ("--max-running-requests 100000000", (), "--from-flags: --max-running-requests 100000000"),
        ("--quantization modelopt_fp4", (), "--from-flags: --quantization modelopt_fp4"),
        ("--ep-num-redundant-experts 99999999", (), "--from-flags: --ep-num-redundant-experts 9"),
        ("--mem-fraction-static 0.01", (), "--from-flags: --mem-fraction-static 0.01: "),
        ("--max-total-tokens 10", (), "--batch (not given): phase.decode.batch_per_rank = 64: "),
        (
            '--deepep-config \'{"normal_dispatch": {"num_sms": 9}, "normal_combine": {"num_sms": 9}}\'',
            (),
            "--from-flags: --deepep-config: a2a.num_sms = 9: ",
        ),
        ("", ("--batch", "9999999"), "--batch 9999999: phase.decode.batch_per_rank = 9999999: "),
        ("", ("--hardware", "none"), "--hardware none: "),
    ],
)
def test_a_fault_of_the_scenario_names_the_flag_that_it_came_from(
    run: Run, flags: str, options: tuple[str, ...], origin: str
) -> None:
    done = run("scenario", "--from-flags", BASE + flags, "--hardware", "h200-8x-ib", *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {origin}")
    assert done.stderr.count("\n") == 1  # no line of a text that nobody has seen


def test_two_batch_overlap_of_collectives_needs_only_attention_dp(run: Run) -> None:
    flags = BASE.replace("--moe-a2a-backend deepep", "--enable-two-batch-overlap")
    done = run("scenario", "--from-flags", flags, "--hardware", "h200-8x-ib")
    assert done.returncode == 0, done.stderr
    assert "backend: none" in done.stdout
