"""What a GPU kernel does, told from its name in a profiler trace.

Library kernels are recognised by the names that DeepEP 1.2, DeepGEMM 2.5, FlashMLA, FlashInfer, NCCL
and torch 2 give them; the first pattern that matches decides, so the particular ones stand first. A
kernel that no pattern knows is `other`, never `compute`.
"""

from __future__ import annotations

import re

_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"deep_ep.*(get_dispatch_layout|clean_low_latency)", "layout"),
    (r"deep_ep.*notify", "notify"),
    (r"deep_ep.*dispatch", "dispatch"),
    (r"deep_ep.*combine", "combine"),
    (r"deep_ep.*barrier", "notify"),
    (r"\bnccl(Dev)?Kernel|^nccl", "collective"),
    (
        r"(cross_device_reduce|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|nvshmem)",
        "collective",
    ),
    (r"deep_gemm.*(GemmType\)1|MGroupedContiguous)", "grouped_gemm_contiguous"),
    (r"deep_gemm.*(GemmType\)2|MGroupedMasked)", "grouped_gemm_masked"),
    (r"(fused_moe_kernel|grouped_?gemm|moe_?gemm|GroupProblemShape)", "grouped_gemm_contiguous"),
    (r"deep_gemm", "gemm"),
    (
        r"(splitkv_mla|mla_decode|BatchDecode|decode_attention|splitkv|paged_attention)",
        "attention_decode",
    ),
    (r"(fmha|flash_?attn|flash_fwd|flash_bwd|BatchPrefill|attention|sdpa)", "attention_prefill"),
    (r"(ep_scatter|moe_permute|permute_(2D|1D)|pre_reorder|moe_align)", "permute"),
    (r"(ep_gather|moe_unpermute|post_reorder|moe_sum)", "unpermute"),
    (r"(silu|swiglu|act_and_mul)", "silu_mul"),
    (r"(quant|cast_fp8|to_fp8|scaled_fp8)", "quantise"),
    (r"(rms_?norm|layer_?norm|batch_?norm|bn_fw|bn_bw)", "norm"),
    (r"(rotary|rope)", "rope"),
    (r"(topk|top_k|softmax_topk|grouped_topk|biased_grouped)", "topk"),
    (r"(embedding|indexSelect|index_select)", "embedding"),
    (r"(gemm|gemv|nvjet|cutlass|cublas|xmma|Cijk_|implicit_convolve|splitKreduce)", "gemm"),
    (r"(elementwise|multi_tensor_apply|vectorized|CatArrayBatched|reduce_kernel|softmax)", "add"),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), kind) for pattern, kind in _PATTERNS)
_QUALIFIER = re.compile(r"^(void|__global__|static|const)\s+")


def kernel_kind(name: str) -> str:
    """The work kind of a kernel called `name` in a trace, or `other`.

    Elementwise torch kernels are all `add`, since they cost alike: they stream their operands.
    """
    for pattern, kind in _COMPILED:
        if pattern.search(name):
            return kind
    return "other"


def short_kernel_name(name: str) -> str:
    """A C++ kernel's own name: no return type, no namespaces, no template or call arguments."""
    text = _without_brackets(_QUALIFIER.sub("", name.strip()))
    last = text.split("::")[-1].strip()
    return last or name[:40]


def _without_brackets(text: str) -> str:
    """The text outside <> and (), where `(anonymous namespace)` counts as outside nothing."""
    kept: list[str] = []
    depth = 0
    for char in text:
        if char in "<(":
            depth += 1
        elif char in ">)":
            depth = max(0, depth - 1)
        elif depth == 0:
            kept.append(char)
    return "".join(kept)
