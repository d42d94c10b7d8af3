"""Hyper-connections of DeepSeek V4, counted by hand: four residual streams of 4096."""

from __future__ import annotations

from dataclasses import replace

from models.deployment import LayerKernels
from models.layer import embedding_kernels, head_kernels, layer_kernels
from models.weights import weights_bytes
from tests.models.layer_cases import decode, deployment, kernel, spread

T, H, STREAMS = 16, 4096, 4
RESIDUAL = T * STREAMS * H * 2  # bf16
COEFFICIENTS = STREAMS + STREAMS + STREAMS * STREAMS  # in, out, between
PROJECTION = COEFFICIENTS * STREAMS * H * 4  # float32


def layer(attention_tp: int = 1) -> LayerKernels:
    case = replace(deployment("deepseek-v4-flash"), attention_tp=attention_tp)
    return layer_kernels(case, decode(8, T, 64), spread(8, T, 256, 4), 0)


def test_a_mix_reads_every_stream_and_writes_24_values_a_token() -> None:
    built = layer()
    for name in ("hc.attn.mix", "hc.mlp.mix"):
        size = kernel(built, name).work
        assert (size.read_bytes, size.write_bytes) == (RESIDUAL + PROJECTION, T * 24 * 4)
        assert size.total_flops == 2 * T * 24 * STREAMS * H


def test_norms_sum_the_streams_and_posts_write_them_back() -> None:
    built = layer()
    for name in ("norm1", "norm2"):
        size = kernel(built, name).work
        assert (size.read_bytes, size.write_bytes) == (RESIDUAL, T * H * 2)
    for name in ("hc.attn.post", "hc.mlp.post"):
        size = kernel(built, name).work
        assert (size.read_bytes, size.write_bytes) == (RESIDUAL + T * H * 2, RESIDUAL)


def test_the_residual_flows_from_layer_to_layer_in_streams() -> None:
    built = layer()
    assert built.buffers["hidden"] == built.buffers["residual"] == RESIDUAL
    assert built.buffers["x1"] == built.buffers["x2"] == T * H * 2
    order = [each.name for group in built.groups.values() for each in group]
    assert order[:2] == ["hc.attn.mix", "norm1"]
    assert order[-2:] == ["add", "hc.mlp.post"]
    case = deployment("deepseek-v4-flash")
    (embed,) = embedding_kernels(case, decode(8, T, 64), 0)
    assert embed.work.write_bytes == RESIDUAL
    head = head_kernels(case, decode(8, T, 64), 0)[0]
    assert head.work.read_bytes == RESIDUAL + STREAMS * STREAMS * H * 4


def test_attention_tp_gathers_one_stream_not_four() -> None:
    gather = kernel(layer(attention_tp=2), "attn.gather").work
    assert gather.read_bytes == T * H * 2


def test_their_weights_are_held() -> None:
    case = deployment("deepseek-v4-flash")
    plain = replace(case, model=replace(case.model, hc_mult=0))
    assert weights_bytes(case) - weights_bytes(plain) == 43 * 2 * PROJECTION


def test_other_models_have_none() -> None:
    names = [
        each.name
        for group in layer_kernels(deployment(), decode(8, T, 64), spread(8, T), 0).groups.values()
        for each in group
    ]
    assert not any(name.startswith("hc.") for name in names)
