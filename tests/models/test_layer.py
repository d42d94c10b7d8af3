"""One DeepSeek-V3 layer counted by hand, and what every layer must satisfy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.config import library_models
from models.deployment import Batch, LayerKernels
from models.exchanges import exchange_bytes
from models.layer import embedding_kernels, head_kernels, layer_kernels
from tests.models.layer_cases import decode, deployment, kernel, prefill, spread, with_fusion

# 128 tokens a rank, 8 ranks, every token to one expert on each rank: 1024 copies in and out of a rank,
# 32 tokens on each of its 32 experts. Each sequence has 2048 cached tokens and adds one.
T, H, INNER, EXPERTS, COPIES = 128, 7168, 2048, 32, 1024


@pytest.fixture(scope="module")
def decode_layer() -> LayerKernels:
    return layer_kernels(deployment(), decode(8, T, 2048), spread(8, T), 0)


def test_attention_operations_by_hand(decode_layer: LayerKernels) -> None:
    flops = {
        "qkv_a": 2 * T * H * (1536 + 512 + 64),
        "q_b": 2 * T * 1536 * 128 * (128 + 64),
        "q_bmm": 2 * T * 128 * 128 * 512,
        # Scores over 576 and values over 512 for 128 heads and 2049 keys.
        "attn": 2 * T * 128 * 2049 * (576 + 512),
        "v_bmm": 2 * T * 128 * 512 * 128,
        "o_proj": 2 * T * 128 * 128 * H,
    }
    assert {name: kernel(decode_layer, name).work.total_flops for name in flops} == flops
    # The cache is read once for all heads: 576 bf16 values a key; queries in, latents out.
    read = T * 2049 * 576 * 2 + T * 128 * 576 * 2
    attn = kernel(decode_layer, "attn").work
    assert (attn.read_bytes, attn.write_bytes) == (read, T * 128 * 512 * 2)


def test_linear_layer_bytes_by_hand(decode_layer: LayerKernels) -> None:
    o_proj = kernel(decode_layer, "o_proj").work
    # fp8 input with a float32 scale per 128 values; fp8 weights with one per 128 x 128 block.
    inputs = T * (16384 + 4 * 128)
    weights = H * 16384 + 4 * 56 * 128
    assert o_proj.read_bytes == inputs + weights
    assert o_proj.write_bytes == T * H * 2
    assert kernel(decode_layer, "o_proj.quantise").work.hbm_bytes == T * 16384 * 2 + inputs


def test_expert_work_by_hand(decode_layer: LayerKernels) -> None:
    gemm1, gemm2 = (kernel(decode_layer, name).work for name in ("gemm1", "gemm2"))
    assert gemm1.total_flops == 2 * COPIES * H * 2 * INNER
    assert gemm2.total_flops == 2 * COPIES * INNER * H
    scales1, scales2 = 4 * (2 * INNER // 128) * (H // 128), 4 * (H // 128) * (INNER // 128)
    assert gemm1.read_bytes == EXPERTS * (2 * INNER * H + scales1) + COPIES * (H + 4 * 56)
    assert gemm2.read_bytes == EXPERTS * (INNER * H + scales2) + COPIES * (INNER + 4 * 16)
    # Buffers hold every slot: 32 experts x 8 ranks x 128 tokens.
    assert decode_layer.buffers["down"] == 32 * 8 * 128 * H * 2


def test_messages_by_hand() -> None:
    low, normal = deployment(), deployment(mode="normal")
    routing = spread(8, T)
    # fp8 with scales (7392 bytes) and a 16-byte header; bf16 back.
    assert exchange_bytes(low, routing, "dispatch")[0] == (T * (7392 + 16),) * 8
    assert exchange_bytes(low, routing, "combine")[3] == (T * 14336,) * 8
    # Eight ids of eight bytes and eight weights of four travel with a normal-mode token.
    assert exchange_bytes(normal, routing, "dispatch")[0] == (T * (7392 + 96),) * 8


def test_normal_mode_sends_a_token_once_per_rank_and_once_per_node() -> None:
    # Experts 0 to 7 lie on rank 0 of 16 ranks (16 experts a rank): one copy, not eight.
    routing = replace(spread(16, T), ids=(spread(8, T, 8, 8).ids[0],) * 16)
    case = deployment(ep=16, mode="normal")
    matrix = exchange_bytes(case, routing, "dispatch")
    assert matrix[0][0] == T * 7488
    assert sum(matrix[0][1:]) == 0
    layer = layer_kernels(case, decode(16, T, 8), routing, 9)
    # Rank 9 is on node 1: its 128 tokens cross to node 0 through its NIC.
    assert kernel(layer, "dispatch").work.dim("nic_copies") == T
    # Rank 9 sends one copy of each token to its relay, rank 1, which passes it on to rank 0.
    assert (matrix[9][1], matrix[9][0]) == (T * 7488, 0)
    assert matrix[1][0] == 2 * T * 7488
    low = deployment(ep=16)
    assert exchange_bytes(low, routing, "dispatch")[0][0] == 8 * T * 7408


def test_contiguous_experts_are_padded_and_masked_ones_are_not() -> None:
    routing = spread(8, T)
    layer = layer_kernels(deployment(mode="normal"), decode(8, T, 2048), routing, 0)
    gemm1 = kernel(layer, "gemm1").work
    assert gemm1.dim("rows") == COPIES
    assert gemm1.dim("padded") == EXPERTS * 128
    assert gemm1.total_flops == 2 * EXPERTS * 128 * H * 2 * INNER


def test_only_active_experts_weights_are_read() -> None:
    few = replace(spread(8, 1), ids=(spread(8, 1).ids[0],) * 8)
    layer = layer_kernels(deployment(), decode(8, 1, 64), few, 0)
    gemm2 = kernel(layer, "gemm2").work
    assert gemm2.dim("active") == 1
    assert gemm2.read_bytes < 2 * INNER * H


def test_prefill_attention_is_causal_and_expands_the_latents() -> None:
    layer = layer_kernels(deployment(mode="normal"), prefill(8, 2, 64), spread(8, T), 0)
    pairs = 2 * (64 * 65 // 2)
    assert kernel(layer, "attn").work.total_flops == 2 * 128 * pairs * (192 + 128)
    assert kernel(layer, "kv_b").work.total_flops == 2 * T * 512 * 128 * 256


def test_grouped_query_layer_by_hand() -> None:
    """Qwen3-235B: 64 heads and 4 key heads of 128, 128 experts of 1536, no shared expert."""
    case = deployment("qwen3-235b-a22b")
    layer = layer_kernels(case, decode(8, T, 2048), spread(8, T, 128, 8), 0)
    assert kernel(layer, "qkv").work.total_flops == 2 * T * 4096 * (64 + 2 * 4) * 128
    attn = kernel(layer, "attn").work
    assert attn.total_flops == 2 * T * 64 * 2049 * (128 + 128)
    assert attn.read_bytes == T * 2049 * 4 * 256 * 2 + T * 64 * 128 * 2
    assert kernel(layer, "o_proj").work.total_flops == 2 * T * 64 * 128 * 4096
    assert kernel(layer, "gemm1").work.total_flops == 2 * COPIES * 4096 * 2 * 1536
    assert layer.groups["S"] == ()


def test_kimi_layer_by_hand() -> None:
    """Kimi-K2: DeepSeek-V3's shapes with 64 heads and 384 experts, 48 a rank."""
    case = deployment("kimi-k2")
    routing = spread(8, T, 384, 8)
    layer = layer_kernels(case, decode(8, T, 2048), routing, 0)
    assert kernel(layer, "attn").work.total_flops == 2 * T * 64 * 2049 * (576 + 512)
    assert kernel(layer, "o_proj").work.total_flops == 2 * T * 64 * 128 * H
    gemm1 = kernel(layer, "gemm1").work
    assert (gemm1.dim("experts"), gemm1.dim("rows")) == (48, COPIES)
    assert kernel(layer, "gate").work.total_flops == 2 * T * H * 384


def test_sparse_attention_reads_the_chosen_keys() -> None:
    """DeepSeek-V3.2 keeps 2048 of 8192 keys; its index heads score all of them in fp8."""
    layer = layer_kernels(deployment("deepseek-v3.2"), decode(8, T, 8191), spread(8, T), 0)
    attn, index = kernel(layer, "attn").work, kernel(layer, "index").work
    assert attn.total_flops == 2 * T * 128 * 2048 * (576 + 512)
    assert attn.read_bytes == T * 2048 * 576 * 2 + T * 128 * 576 * 2
    assert index.total_flops == 2 * T * 64 * 128 * 8192


def test_fusion_drops_the_shared_kernels() -> None:
    fused = with_fusion(deployment())
    layer = layer_kernels(fused, decode(8, T, 2048), spread(8, T, 264, 8), 0)
    assert layer.groups["S"] == ()
    assert kernel(layer, "gemm1").work.dim("experts") == 33
    assert kernel(layer, "add").reads == ("residual", "routed")


def test_flights_exist_only_across_nodes() -> None:
    assert not layer_kernels(deployment(), decode(8, T, 64), spread(8, T), 0).flights
    layer = layer_kernels(deployment(ep=16), decode(16, T, 64), spread(16, T), 0)
    assert set(layer.flights) == {"dispatch", "combine"}
    assert not layer_kernels(
        deployment(ep=16, mode="normal"), decode(16, T, 64), spread(16, T), 0
    ).flights


def test_attention_tp_shares_heads_and_sequences() -> None:
    alone = layer_kernels(deployment(), decode(8, T, 2048), spread(8, T), 5)
    pair = replace(deployment(), attention_tp=2)
    shared = layer_kernels(pair, decode(8, T, 2048), spread(8, T), 5)
    attn = kernel(shared, "attn").work
    assert attn.dim("sequences") == 2 * T
    assert attn.total_flops == kernel(alone, "attn").work.total_flops
    assert kernel(shared, "attn.gather").work.dim("ranks") == 2


@pytest.mark.parametrize("name", library_models())
@pytest.mark.parametrize("mode", ["low_latency", "normal"])
@pytest.mark.parametrize("kind", ["moe", "dense"])
def test_data_flows_from_hidden_to_hidden(name: str, mode: str, kind: str) -> None:
    case = deployment(name, mode=mode)
    experts, top_k = case.model.n_routed_experts, case.model.top_k
    routing = spread(8, 16, experts, top_k if experts % top_k == 0 else 4)
    for batch in (decode(8, 16, 64), prefill(8, 2, 8)):
        layer = layer_kernels(
            case, batch, routing, 3, layer_kind="moe" if kind == "moe" else "dense"
        )
        written = {"hidden", "dispatch_buffer", "combine_buffer"}
        for letter in ("P", "Q", "C", "M", "G", "T", "Da", "Db", "X", "Ca", "Cb", "S", "O", "Z"):
            for each in layer.groups.get(letter, ()):
                assert set(each.reads) <= written, each.name
                written |= set(each.writes)
        last = layer.groups.get("Z", layer.groups["O"])[-1]
        assert last.writes == ("hidden",)
        assert set(layer.buffers) >= written - {"dispatch_buffer", "combine_buffer"}
        names = [k.name for group in layer.groups.values() for k in group]
        assert len(names) == len(set(names))


def test_embedding_and_head_ends_of_a_step() -> None:
    case = deployment()
    (embed,) = embedding_kernels(case, prefill(8, 2, 64), 0)
    assert embed.writes == ("hidden",)
    head = head_kernels(case, prefill(8, 2, 64), 0)[-1]
    # Only the last token of each of the two prompts needs logits.
    assert head.work.total_flops == 2 * 2 * 129280 * H
    assert head_kernels(case, decode(8, T, 64), 0)[-1].work.dim("m") == T


def test_the_head_of_a_group_has_a_row_for_each_prompt_of_the_group() -> None:
    """Ranks of three prompts and of one: four rows on both, over half of the vocabulary each."""
    batch = Batch("prefill", ((8, 8, 8), (24,)) * 4, ((0, 0, 0), (0,)) * 4)
    pair = replace(deployment(), attention_tp=2, attention_dp=4)
    for rank in (0, 1):
        head = head_kernels(pair, batch, rank)[-1].work
        assert (head.dim("m"), head.dim("n")) == (4, 129280 // 2)


def test_batch_and_routing_must_agree() -> None:
    with pytest.raises(ValueError, match="rank 2 has 16 tokens"):
        layer_kernels(deployment(), decode(8, 16, 64), spread(8, 17), 2)
