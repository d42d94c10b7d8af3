"""Point tables of the library's hardware profiles, read from CSV extracts of AIConfigurator."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from models.tables import Key

Row = Mapping[str, str]
Points = dict[tuple[Key, float], float]

# The collector of the contiguous grouped GEMM adds 8 ns per token of all ranks and hides kernels below
# a host-bound floor of 0.4 ms; rows within 1.5 floors are of no use.
COLLECTOR_US_PER_GLOBAL_TOKEN = 0.008
COLLECTOR_FLOOR_US = 600.0


@dataclass(frozen=True)
class Table:
    """Points of one table, with the columns of its key and the words about its origin."""

    key: tuple[str, ...]
    x: str
    points: Points
    source: str


def rows_of(folder: Path, name: str, **wanted: str) -> Iterator[Row]:
    """Rows of one CSV file whose columns have the wanted values."""
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if all(row[column] == value for column, value in wanted.items()):
                yield row


def averaged(values: Iterable[tuple[Key, float, float]]) -> Points:
    """Geometric means of repeated points; times in us."""
    logs: dict[tuple[Key, float], list[float]] = {}
    for key, x, us in values:
        logs.setdefault((key, x), []).append(math.log(us))
    return {place: math.exp(sum(found) / len(found)) for place, found in sorted(logs.items())}


def number(row: Row, column: str) -> float:
    """A cell as a number."""
    return float(row[column])


def gemm_table(folder: Path, system: str, dtype: str) -> Table:
    """Dense GEMMs of one format."""
    found = rows_of(folder, "kernels_gemm_dense_hopper", system=system, gemm_dtype=dtype)
    points = averaged(
        ((number(r, "n"), number(r, "k")), number(r, "m"), number(r, "latency_ms") * 1e3)
        for r in found
    )
    return Table(("n", "k"), "m", points, "gemm/sglang/0.5.14")


def masked_table(folder: Path, gpu: str, system: str) -> Table:
    """Masked grouped GEMM pair under uniform routing, by active experts and rows of each."""
    found = rows_of(
        folder,
        f"kernels_moe_wideep_sglang_{gpu}",
        system=system,
        phase="generation",
        distribution="uniform",
    )
    values = []
    for row in found:
        local = number(row, "local_experts")
        copies = local * number(row, "mean_tokens_per_local_expert")
        active = min(local, copies)
        values.append(((active,), copies / active, number(row, "latency_ms") * 1e3))
    return Table(("active",), "rows", averaged(values), "moe/sglang/0.5.10 and 0.5.6.post2")


def contiguous_table(folder: Path, gpu: str, system: str) -> Table:
    """Contiguous grouped GEMM pair under uniform routing, freed of what the collector adds."""
    found = rows_of(
        folder,
        f"kernels_moe_wideep_sglang_{gpu}",
        system=system,
        phase="context",
        distribution="uniform",
    )
    values = []
    for row in found:
        us, rows = number(row, "latency_ms") * 1e3, number(row, "mean_tokens_per_local_expert")
        if row["provenance"].endswith("0.5.10") and us > COLLECTOR_FLOOR_US and rows >= 128:
            us -= COLLECTOR_US_PER_GLOBAL_TOKEN * number(row, "global_tokens")
            values.append(((number(row, "local_experts"),), rows, us))
    note = "moe/sglang/0.5.10, less 8 ns per global token; rows under 0.6 ms left out"
    return Table(("active",), "rows", averaged(values), note)


def decode_table(folder: Path, gpu: str) -> Table:
    """Latent attention of decode over a bf16 cache."""
    points = averaged(
        (
            (number(r, "batch_size"),),
            number(r, "kv_len_minus_isl(step)") + 1,
            number(r, "latency_ms") * 1e3,
        )
        for r in mla_rows(folder, gpu, "generation")
    )
    return Table(("sequences",), "kv", points, "mla/sglang/0.5.14")


def prefill_table(folder: Path, gpu: str) -> Table:
    """Latent attention of prefill in the absorbed form, bf16."""
    points = averaged(
        ((number(r, "batch_size"),), number(r, "isl_tokens"), number(r, "latency_ms") * 1e3)
        for r in mla_rows(folder, gpu, "context")
        if number(r, "kv_len_minus_isl(step)") == 0
    )
    return Table(("sequences",), "length", points, "mla/sglang/0.5.14")


def mla_rows(folder: Path, gpu: str, phase: str) -> Iterator[Row]:
    """Rows of the attention kernel alone."""
    return rows_of(
        folder,
        f"kernels_mla_{gpu}_sxm",
        phase=phase,
        scope="attention_kernel_only",
        kv_cache_dtype="bfloat16",
    )


def bmm_table(folder: Path, system: str) -> Table:
    """The two batched products of absorbed attention, bf16."""
    sizes = {"mla_gen_pre": (512.0, 128.0), "mla_gen_post": (128.0, 512.0)}
    points = averaged(
        (sizes[r["op_name"]], number(r, "num_tokens"), number(r, "latency_ms") * 1e3)
        for r in rows_of(folder, "kernels_mla_bmm", system=system, bmm_dtype="bfloat16")
    )
    return Table(("n", "k"), "m", points, "mla_bmm/sglang/0.5.14")


def normal_rows(folder: Path, system: str) -> Iterator[Row]:
    """One node from the later collection, 2 and 4 nodes from the only one; 8 nodes were congested."""
    for row in rows_of(folder, "kernels_deepep_normal", system=system, num_experts="256"):
        one, later = row["node_num"] == "1", row["provenance"].endswith("0.5.12")
        if (one and later) or (row["node_num"] in ("2", "4") and not later):
            yield row


def normal_table(folder: Path, system: str, op: str) -> Table:
    """Normal-mode transfers by nodes and SMs."""
    points = averaged(
        (
            (number(r, "node_num"), number(r, f"{op}_num_sms")),
            number(r, "tokens_per_rank"),
            number(r, f"{op}_transmit_us"),
        )
        for r in normal_rows(folder, system)
    )
    return Table(("nodes", "num_sms"), "tokens", points, "comm/sglang/0.5.12 and 0.5.6.post2")


def notify_table(folder: Path, system: str) -> Table:
    """Barrier kernels across nodes, over all SM counts; `combine` is 0 or 1."""
    values = []
    for row in normal_rows(folder, system):
        for combine, op in enumerate(("dispatch", "combine")):
            us = number(row, f"{op}_notify_us")
            if us > 0:
                key = (number(row, "node_num"), float(combine))
                values.append((key, number(row, "tokens_per_rank"), us))
    return Table(("nodes", "combine"), "tokens", averaged(values), "comm/sglang/0.5.6.post2")


def low_latency_table(folder: Path, system: str, op: str) -> Table:
    """Low-latency exchanges at hidden size 7168 by ranks; one node from the later collection."""
    values = []
    for row in rows_of(
        folder, "kernels_deepep_ll", system=system, hidden_size="7168", num_topk="8"
    ):
        one, later = row["node_num"] == "1", row["provenance"].endswith("0.5.12")
        if row["num_experts"] in ("256", "288") and one == later:
            tokens = number(row, "tokens_per_rank")
            values.append(((number(row, "ep_size"),), tokens, number(row, f"{op}_us")))
    return Table(("ep_size",), "tokens", averaged(values), "comm/sglang/0.5.12 and 0.5.6.post2")


def collective_table(folder: Path, system: str) -> Table:
    """All-gather (1) and reduce-scatter (2) by ranks; sizes counted in elements of two bytes."""
    parts = {"all_gather": 1.0, "reduce_scatter": 2.0}
    points = averaged(
        (
            (number(r, "num_gpus"), parts[r["op_name"]]),
            2 * number(r, "message_size"),
            number(r, "latency_ms") * 1e3,
        )
        for r in rows_of(folder, "kernels_nccl", system=system)
        if r["op_name"] in parts
    )
    return Table(("ranks", "part"), "nbytes", points, "comm/nccl/2.23 and 2.29.2")


def tables_of(folder: Path, gpu: str) -> dict[str, Table]:
    """All tables of one GPU, by the names that costs look up."""
    system = f"{gpu}_sxm"
    return {
        "gemm.bf16": gemm_table(folder, system, "bfloat16"),
        "gemm.fp8": gemm_table(folder, system, "fp8_block"),
        "bmm.bf16": bmm_table(folder, system),
        "attention_decode.mla": decode_table(folder, gpu),
        "attention_prefill.mla": prefill_table(folder, gpu),
        "grouped_gemm_masked.fp8": masked_table(folder, gpu, system),
        "grouped_gemm_contiguous.fp8": contiguous_table(folder, gpu, system),
        "dispatch": normal_table(folder, system, "dispatch"),
        "combine": normal_table(folder, system, "combine"),
        "notify": notify_table(folder, system),
        "dispatch_ll": low_latency_table(folder, system, "dispatch"),
        "combine_ll": low_latency_table(folder, system, "combine"),
        "collective": collective_table(folder, system),
    }
