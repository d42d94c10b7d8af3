"""Kernel names as libraries give them in traces, and what each kernel is."""

from __future__ import annotations

import pytest

from models.work import WORK_KINDS
from viz.kernel_names import kernel_kind, short_kernel_name

CASES = [
    (
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)",
        "layout",
        "get_dispatch_layout",
    ),
    (
        "void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int)",
        "notify",
        "notify_dispatch",
    ),
    (
        "void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int)",
        "notify",
        "cached_notify_combine",
    ),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", "dispatch", "dispatch"),
    (
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*)",
        "combine",
        "combine",
    ),
    (
        "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, void*)",
        "dispatch",
        "dispatch",
    ),
    ("void deep_ep::internode_ll::combine<false, 7168, 9, 4>(void*)", "combine", "combine"),
    (
        "void deep_ep::internode_ll::clean_low_latency_buffer<512>(int*, int)",
        "layout",
        "clean_low_latency_buffer",
    ),
    (
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u, 9u, 64u, 128u, 128u, 128u, 64u, 5u, 1u, 128u, "
        "132u, (deep_gemm::GemmType)2>(float*, int*, CUtensorMap_st)",
        "grouped_gemm_masked",
        "sm90_fp8_gemm_1d2d_impl",
    ),
    (
        "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, (deep_gemm::GemmType)1>(float*)",
        "grouped_gemm_contiguous",
        "fp8_gemm_kernel",
    ),
    (
        "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, (deep_gemm::GemmType)0>(float*)",
        "gemm",
        "fp8_gemm_kernel",
    ),
    ("fused_moe_kernel", "grouped_gemm_contiguous", "fused_moe_kernel"),
    (
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "collective",
        "ncclDevKernel_AllGather_RING_LL",
    ),
    (
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "collective",
        "ncclKernel_AllReduce_RING_LL_Sum_float",
    ),
    (
        "void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576>>(Flash_fwd_mla_params)",
        "attention_decode",
        "flash_fwd_splitkv_mla_kernel",
    ),
    (
        "void flashinfer::BatchPrefillWithRaggedKVCacheKernel<1, 2>(int)",
        "attention_prefill",
        "BatchPrefillWithRaggedKVCacheKernel",
    ),
    (
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7",
        "attention_prefill",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7",
    ),
    (
        "void per_token_group_quant_8bit_kernel<__nv_bfloat16>(void const*)",
        "quantise",
        "per_token_group_quant_8bit_kernel",
    ),
    ("_silu_and_mul_post_quant_kernel", "silu_mul", "_silu_and_mul_post_quant_kernel"),
    ("_fwd_kernel_ep_scatter_2", "permute", "_fwd_kernel_ep_scatter_2"),
    ("_fwd_kernel_ep_gather", "unpermute", "_fwd_kernel_ep_gather"),
    (
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(float)",
        "norm",
        "FusedAddRMSNormKernel",
    ),
    (
        "nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNN",
        "gemm",
        "nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNN",
    ),
    (
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2>(float*)",
        "add",
        "CatArrayBatchedCopy",
    ),
    (
        "void cub::DeviceScanKernel<cub::AgentScanPolicy<128, 15, int> >(int)",
        "other",
        "DeviceScanKernel",
    ),
    ("compute_everything", "other", "compute_everything"),
]


@pytest.mark.parametrize(("name", "kind", "short"), CASES)
def test_kernel(name: str, kind: str, short: str) -> None:
    assert kernel_kind(name) == kind
    assert short_kernel_name(name) == short
    assert kind in (*WORK_KINDS, "other")


def test_a_name_of_brackets_only_keeps_something() -> None:
    assert short_kernel_name("<lambda>(x)") == "<lambda>(x)"
