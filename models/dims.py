"""The sizes by which kernels of each kind are known: what a file of points may say of one."""

from __future__ import annotations

from collections.abc import Mapping

Names = tuple[str, ...]

FLOP_DTYPES: Names = ("bf16", "fp8", "fp4")
_ROWS: Names = ("columns", "rows")
_GEMM: Names = ("k", "m", "n")
_GROUPED: Names = ("active", "experts", "k", "n", "padded", "part", "rows")
_ATTENTION: Names = ("heads", "kv_tokens", "pairs", "qk_dim", "sequences", "tokens", "v_dim")
_EXCHANGE: Names = (
    "combine", "copies", "ep_size", "experts", "hidden", "nic_copies", "nodes", "num_sms", "payload",
    "received", "sent", "tokens",
)  # fmt: skip
# By kind the sorted names of its sizes; attention over grouped or shared keys has their heads, and the
# activation between two grouped GEMMs has theirs.
DIMS: Mapping[str, tuple[Names, ...]] = {
    **dict.fromkeys(
        (
            "embedding", "norm", "rope", "kv_write", "topk", "quantise", "permute", "unpermute", "add",
        ),
        (_ROWS,),
    ),
    **dict.fromkeys(("gemm", "gate", "head"), (_GEMM,)),
    "bmm": (("heads", *_GEMM),),
    **dict.fromkeys(("grouped_gemm_masked", "grouped_gemm_contiguous"), (_GROUPED,)),
    **dict.fromkeys(
        ("attention_decode", "attention_prefill"),
        (_ATTENTION, tuple(sorted((*_ATTENTION, "kv_heads")))),
    ),
    "silu_mul": (_ROWS, ("active", "bits", "columns", "hidden", "masked", "rows")),
    "layout": (("tokens",),),
    "notify": (("combine", "ep_size", "nodes", "tokens"),),
    **dict.fromkeys(
        (
            "dispatch", "combine", "dispatch_send", "dispatch_recv", "combine_send", "combine_recv",
            "flight",
        ),
        (_EXCHANGE,),
    ),
    "collective": (("nbytes", "ranks", "reduce"),),
    "spin": (("cta_ns", "ctas", "smem_bytes", "threads"),),
}  # fmt: skip
