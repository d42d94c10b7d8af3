"""Which table answers for a kernel, where in it, and what work each of its points stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from models.attention_counts import absorbed_attention, plain_attention
from models.counts import bmm, gemm
from models.pair_costs import pair_work
from models.sequences import SequenceSums
from models.tables import Key
from models.work import Work, work

_WEIGHTS = {"bf16": "bf16", "fp8": "fp8_block", "fp4": "nvfp4"}
_GEMMS = ("gemm", "gate", "head")

# Sizes at which the tables were taken: DeepSeek-V3's, from the columns of their source.
TABLE_HEADS = 128
TABLE_LATENT, TABLE_ROPE = 512, 64
TABLE_QK, TABLE_V = 192, 128
TABLE_HIDDEN, TABLE_INNER = 7168, 2048


@dataclass(frozen=True, slots=True)
class Place:
    """A table's name, series and place along it. `same` is False when the table's kernel has other
    fixed sizes than this one (heads, hidden size): its ratio to the form still tells something."""

    table: str
    key: Key
    x: float
    same: bool = True


def variant_of(work: Work) -> str:
    """What tells forms of one kind apart: the dtype of a GEMM, the kind of attention; else empty."""
    sizes: Mapping[str, int] = dict(work.dims)
    if work.kind.startswith("attention"):
        if not sizes["v_dim"]:
            return "index"
        return "gqa" if "kv_heads" in sizes else "mla"
    return work.flops[0][0] if work.flops else ""


def places_of(work: Work) -> tuple[Place, ...]:
    """Where the tables may speak of `work`, the closest first; empty for a kind without a table."""
    variant = variant_of(work)
    if work.kind in _GEMMS:
        return (Place(f"gemm.{variant}", (work.dim("n"), work.dim("k")), work.dim("m")),)
    if work.kind == "bmm":
        same = work.dim("heads") == TABLE_HEADS
        return (Place("bmm.bf16", (work.dim("n"), work.dim("k")), work.dim("m"), same),)
    if work.kind == "attention_decode" and variant == "mla":
        return (_decode_place(work),)
    if work.kind == "attention_prefill" and variant == "mla":
        return _prefill_places(work)
    if work.kind == "collective":
        key = (work.dim("ranks"), 1 + work.dim("reduce"))
        return (Place("collective", key, work.dim("nbytes")),)
    return ()


def _decode_place(work: Work) -> Place:
    """By sequences and their mean length."""
    sequences = work.dim("sequences")
    mean = work.dim("kv_tokens") / max(1, sequences)
    same = (
        work.dim("heads") == TABLE_HEADS
        and work.dim("tokens") == sequences
        and work.dim("qk_dim") == TABLE_LATENT + TABLE_ROPE
    )
    return Place("attention_decode.mla", (sequences,), mean, same)


def _prefill_places(work: Work) -> tuple[Place, ...]:
    """By the length that causal sequences of this many tokens and query-key pairs have, and how many
    those are. A table of the absorbed form lends its efficiency to the plain one."""
    tokens = work.dim("tokens")
    length = max(1.0, 2 * work.dim("pairs") / max(1, tokens) - 1)
    sizes = tuple(work.dim(name) for name in ("heads", "qk_dim", "v_dim"))
    same = sizes == (TABLE_HEADS, TABLE_QK, TABLE_V)
    key = (tokens / length,)
    return (
        Place("attention_prefill.plain", key, length, same),
        Place("attention_prefill.absorbed", key, length, same=False),
    )


def point_work(table: str, key: Key, x: float) -> Work:
    """The work that a point of `table` timed. KeyError for a table without works."""
    name, _, variant = table.partition(".")
    size = round(x)
    if name == "gemm":
        return gemm(size, round(key[0]), round(key[1]), _WEIGHTS[variant])
    if name == "bmm":
        return bmm(TABLE_HEADS, size, round(key[0]), round(key[1]))
    if name == "attention_decode":
        batch = round(key[0])
        return absorbed_attention(
            SequenceSums(batch, batch, batch * size, batch * size),
            TABLE_HEADS,
            TABLE_LATENT,
            TABLE_ROPE,
            kv_bytes=2,
        )
    if name == "attention_prefill":
        batch = round(key[0])
        pairs = batch * size * (size + 1) // 2
        sums = SequenceSums(batch, batch * size, batch * size, pairs)
        if variant == "plain":
            return plain_attention(sums, TABLE_HEADS, TABLE_QK, TABLE_V)
        return plain_attention(sums, TABLE_HEADS, TABLE_LATENT + TABLE_ROPE, TABLE_LATENT)
    if name.startswith("grouped_gemm"):
        active = round(key[0])
        rows = round(active * x)
        return pair_work(
            name,
            active,
            rows,
            TABLE_HIDDEN,
            TABLE_INNER,
            bits={"bf16": 16, "fp8": 8, "fp4": 4}[variant],
        )
    if name == "collective":
        part = size // round(key[0])
        return work("collective", read_bytes=size, write_bytes=part, nbytes=size)
    raise KeyError(f"no work belongs to the points of table {table!r}")
