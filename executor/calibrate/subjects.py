"""Kernels to run beside each other: GEMMs and elementwise work, exchanges, a streaming kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from executor import small_kernels as small
from executor.calibrate.plan import (
    DENSE_ROWS,
    GROUPED_ROWS,
    THIN_ROWS,
    WEIGHT_ROWS,
    WEIGHT_ROWS_ALLOCATED,
)
from executor.calibrate.stream_kernel import stream_kernel
from executor.calibrate.triton_subjects import triton_call
from executor.kernel_set import ExecutorError
from executor.libraries import DeepEp
from executor.partition import Partitions
from executor.production_setup import Session
from models.counts import activation_bytes, weight_bytes
from models.exchanges import copies, payload_bytes
from models.routing import Routing

Family = str
BLOCK = 16384
STREAM_BLOCKS = 2**15
# Rounds of arithmetic after each block of 64 KiB that an SM loads (None: no loads), and blocks that it
# loads in a call: what draws from nothing to all of HBM's bandwidth, some 150 us a call.
LEVELS: Mapping[str, tuple[int | None, int]] = {
    "none": (None, 1),
    "slow": (160, 12),
    "third": (60, 25),
    "half": (20, 45),
    "most": (8, 60),
    "full": (0, 75),
}
IDLE_ROUNDS = 1600
ELEMENTS = 65536
NORM_ROWS = 32768
ATTENTION = (2, 1536)  # sequences, tokens of each
# SMs come to a green context in groups; an unfinished group would be rounded up.
PARTITION_SMS = 8


@dataclass(frozen=True)
class Subject:
    """Something to call over and over: HBM bytes of one call, SMs that it holds, the kinds of work
    that it stands for, and its exchange's family ("" for compute)."""

    name: str
    call: Callable[[], Any]
    nbytes: float
    sms: int
    kinds: tuple[str, ...] = ()
    family: Family = ""


def compute_subject(session: Session, name: str, sms: int, num_sms: int) -> Subject:
    """One of the plan's `NEIGHBOURS` or `HELD_KERNELS`, on `sms` SMs where it can be limited: GEMMs by
    their library, attention by a partition."""
    limited = {"dense": _dense, "grouped": _grouped, "weights": _weights, "thin": _thin}
    if name in limited:
        return limited[name](session, sms)
    if name == "attention":
        return _attention(session, sms, num_sms)
    return _elementwise(num_sms) if name == "elementwise" else _norm(session, num_sms)


def _dense(session: Session, sms: int) -> Subject:
    weight = session.weights.linear["o_proj"]
    n, k = weight[0].shape
    x = small.quantise(_random(DENSE_ROWS, k), column_major=True)
    nbytes = activation_bytes(DENSE_ROWS, k, "fp8_block") + weight_bytes(n, k, "fp8_block")
    return Subject(
        "dense",
        lambda: session.gemm.dense(x, weight, sms),
        nbytes + 2 * DENSE_ROWS * n,
        sms,
        ("gemm", "gate", "head", "bmm"),
    )


def _grouped(session: Session, sms: int) -> Subject:
    weight = session.weights.gate_up
    experts, n, k = weight[0].shape
    rows = experts * GROUPED_ROWS
    x = small.quantise(_random(rows, k), column_major=True)
    ids = torch.arange(experts, dtype=torch.int32, device="cuda")
    expert_of = ids.repeat_interleave(GROUPED_ROWS)
    nbytes = activation_bytes(rows, k, "fp8_block") + experts * weight_bytes(n, k, "fp8_block")
    return Subject(
        "grouped",
        lambda: session.gemm.contiguous(x, weight, expert_of, sms),
        nbytes + 2 * rows * n,
        sms,
        ("grouped_gemm_contiguous",),
    )


def _weights(session: Session, sms: int) -> Subject:
    return _masked(session, "weights", WEIGHT_ROWS, sms)


def _thin(session: Session, sms: int) -> Subject:
    return _masked(session, "thin", THIN_ROWS, sms)


def _masked(session: Session, name: str, valid: int, sms: int) -> Subject:
    weight = session.weights.gate_up
    experts, n, k = weight[0].shape
    values, scales = small.quantise(_random(experts * WEIGHT_ROWS_ALLOCATED, k), column_major=False)
    by_column = (
        scales.view(experts, WEIGHT_ROWS_ALLOCATED, -1).transpose(1, 2).contiguous().transpose(1, 2)
    )
    counts = torch.full((experts,), valid, dtype=torch.int32, device="cuda")
    x = (values.view(experts, WEIGHT_ROWS_ALLOCATED, k), by_column)
    nbytes = experts * (weight_bytes(n, k, "fp8_block") + valid * (k + 2 * n))
    return Subject(
        name,
        lambda: session.gemm.masked(x, weight, counts, valid, sms),
        nbytes,
        sms,
        ("grouped_gemm_masked",),
    )


def _attention(session: Session, sms: int, num_sms: int) -> Subject:
    att = session.deployment.model.attention
    shape = (*ATTENTION, att.num_heads)
    dims = (*[att.qk_nope_head_dim + att.qk_rope_head_dim] * 2, att.v_head_dim)
    query, keys, values = (
        _random(shape[0] * shape[1], shape[2] * dim).view(*shape, dim).transpose(1, 2)
        for dim in dims
    )
    partitions = Partitions()
    if sms < num_sms:
        sms -= sms % PARTITION_SMS

    def call() -> None:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]):
            scaled_dot_product_attention(query, keys, values, is_causal=True)

    def limited() -> None:
        with partitions.limited(sms):
            call()

    nbytes = 2.0 * shape[0] * shape[1] * shape[2] * (sum(dims) + att.v_head_dim)
    kinds = ("attention_prefill", "attention_decode")
    return Subject("attention", limited if sms < num_sms else call, nbytes, sms, kinds)


def _elementwise(num_sms: int) -> Subject:
    x = _random(ELEMENTS, 8192)
    kinds = (
        "quantise", "silu_mul", "permute", "unpermute", "add", "rope", "kv_write", "topk",
    )  # fmt: skip
    nbytes = ELEMENTS * (8192 * 2 + 4096)
    return Subject("elementwise", lambda: small.silu_mul_quantise(x), nbytes, num_sms, kinds)


def _norm(session: Session, num_sms: int) -> Subject:
    weight = session.weights.norms["norm1"]
    x = _random(NORM_ROWS, weight.shape[0])
    nbytes = 2 * 2 * x.numel()
    return Subject("norm", lambda: small.rms_norm(x, weight), nbytes, num_sms, ("norm",))


def stream_subject(level: str, sms: int) -> Subject:
    """The streaming kernel on `sms` SMs at one of `LEVELS`; each call reads other blocks than the last."""
    pause, each = LEVELS[level]
    blocks = sms * each
    source = torch.empty(STREAM_BLOCKS * BLOCK, dtype=torch.float32, device="cuda")
    sink = torch.empty(sms * BLOCK, dtype=torch.float32, device="cuda")
    bases = cycle(range(0, STREAM_BLOCKS - blocks + 1, blocks))

    def call() -> None:
        stream_kernel[(sms,)](
            source, sink, next(bases), blocks, IDLE_ROUNDS if pause is None else pause,
            LOADS=pause is not None, BLOCK=BLOCK, num_warps=32,
        )  # fmt: skip

    nbytes = 0 if pause is None else 4 * BLOCK * blocks
    return Subject(f"stream {level}", call, nbytes, sms)


def exchange_subject(session: Session, routing: Routing, name: str, num_sms: int) -> Subject:
    """A `dispatch`, `combine`, `dispatch_ll` or `combine_ll` of the routing's tokens, repeated with
    the layout of a first one."""
    rank = session.rank
    ids = torch.as_tensor(routing.ids[rank]).to(device="cuda", dtype=torch.int64).contiguous()
    weights = torch.rand(ids.shape, dtype=torch.float32, device="cuda")
    x = _random(ids.shape[0], session.deployment.model.hidden_size)
    mode = session.deployment.a2a.mode
    matrix = copies(routing, mode)
    exchange = name.removesuffix("_ll")
    payload = payload_bytes(session.deployment, exchange)
    nbytes = float((matrix[rank].sum() + matrix[:, rank].sum()) * payload)
    if (mode == "low_latency") != name.endswith("_ll"):
        raise ExecutorError(f"{name} does not run in {mode} mode")
    family = "low_latency" if mode == "low_latency" else "normal"
    if not isinstance(session.exchange, DeepEp):
        all_sms = session.deployment.machine.num_sms
        call, sms = triton_call(session.exchange, name, x, ids, weights, num_sms, all_sms)
        return Subject(name, call, nbytes, sms, family=family)
    if mode == "low_latency":
        call, sms = _low_latency_call(session, name, x, ids, weights)
        return Subject(name, call, nbytes, sms, family=family)
    session.exchange.set_num_sms(num_sms)
    call = _normal_call(session, name, x, ids, weights)
    return Subject(name, call, nbytes, num_sms, family=family)


def _normal_call(
    session: Session, name: str, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> Callable[[], Any]:
    packed = small.quantise(x, column_major=False)
    received, _, _, _, handle = session.exchange.dispatch(packed, ids, weights, on_comm=False)
    buffer = session.exchange.buffer
    if name == "dispatch":
        return lambda: buffer.dispatch(packed, handle=handle)
    back = _random(received[0].shape[0], x.shape[1])
    return lambda: buffer.combine(back, handle)


def _low_latency_call(
    session: Session, name: str, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> tuple[Callable[[], Any], int]:
    """The call, send and receive in one kernel, and its CTAs: one for each expert, and at least one for
    each token that a combine sums; at most one on each SM."""
    exchange, most = session.exchange, session.deployment.machine.num_sms
    sms = min(most, exchange.num_experts)

    def dispatch() -> Any:
        return exchange.buffer.low_latency_dispatch(
            x, ids, exchange.max_tokens, exchange.num_experts, use_fp8=True
        )

    if name == "dispatch_ll":
        return dispatch, sms
    received, _, handle, _, _ = dispatch()
    back = torch.randn_like(received[0], dtype=torch.bfloat16)
    sms = min(most, max(sms, x.shape[0]))
    return lambda: exchange.buffer.low_latency_combine(back, ids, weights, handle), sms


def _random(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, dtype=torch.bfloat16, device="cuda")
