"""Point tables of the library's hardware profiles, read from CSV extracts of AIConfigurator."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median

from models.tables import Key

Row = Mapping[str, str]
Points = dict[tuple[Key, float], float]


@dataclass(frozen=True)
class Gpu:
    """Where the rows of one GPU are. `floor_us` is one and a half times the host-bound floor below
    which the contiguous grouped GEMM's collector hides kernels; `attention` None: no rows. `prefill`
    says which form its prefill rows time: on Hopper the absorbed one; B200's would need twice the
    peak for that, so they time the plain one."""

    machine: str
    base: str
    system: str
    capability: tuple[int, int]
    gemm: str
    moe: str
    attention: str | None
    prefill: str
    floor_us: float


GPUS = {
    "h100": Gpu(
        "H100 SXM",
        "_hopper",
        "h100_sxm",
        (9, 0),
        "kernels_gemm_dense_hopper",
        "kernels_moe_wideep_sglang_h100",
        "kernels_mla_h100_sxm",
        "absorbed",
        600.0,
    ),
    "h200": Gpu(
        "H200 SXM",
        "_hopper",
        "h200_sxm",
        (9, 0),
        "kernels_gemm_dense_hopper",
        "kernels_moe_wideep_sglang_h200",
        "kernels_mla_h200_sxm",
        "absorbed",
        600.0,
    ),
    "b200": Gpu(
        "B200",
        "_blackwell",
        "b200_sxm",
        (10, 0),
        "kernels_gemm_dense_blackwell",
        "kernels_moe_wideep_sglang_blackwell",
        "kernels_mla_b200_sxm",
        "plain",
        460.0,
    ),
    "gb200": Gpu(
        "GB200 NVL72",
        "_blackwell",
        "gb200",
        (10, 0),
        "kernels_gemm_dense_blackwell",
        "kernels_moe_wideep_sglang_blackwell",
        None,
        "plain",
        780.0,
    ),
}


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


def gemm_table(folder: Path, gpu: Gpu, dtype: str) -> Table:
    """Dense GEMMs of one format."""
    found = rows_of(folder, gpu.gemm, system=gpu.system, gemm_dtype=dtype)
    points = averaged(
        ((number(r, "n"), number(r, "k")), number(r, "m"), number(r, "latency_ms") * 1e3)
        for r in found
    )
    return Table(("n", "k"), "m", points, "gemm/sglang/0.5.14")


def masked_table(folder: Path, gpu: Gpu) -> Table:
    """Masked grouped GEMM pair under uniform routing, by active experts and rows of each."""
    found = rows_of(folder, gpu.moe, system=gpu.system, phase="generation", distribution="uniform")
    values = []
    for row in found:
        local = number(row, "local_experts")
        copies = local * number(row, "mean_tokens_per_local_expert")
        active = min(local, copies)
        values.append(((active,), copies / active, number(row, "latency_ms") * 1e3))
    return Table(("active",), "rows", averaged(values), "moe/sglang/0.5.10 and 0.5.6.post2")


def contiguous_table(folder: Path, gpu: Gpu) -> Table:
    """Contiguous grouped GEMM pair under uniform routing, freed of what the collector adds: a time per
    token of all ranks, found from rows that compute as many rows per rank at different EP sizes."""
    found = [
        row
        for row in rows_of(
            folder, gpu.moe, system=gpu.system, phase="context", distribution="uniform"
        )
        if row["provenance"].endswith("0.5.10")
    ]
    slope = collector_us_per_token(found)
    values = []
    for row in found:
        us, rows = number(row, "latency_ms") * 1e3, number(row, "mean_tokens_per_local_expert")
        if us > gpu.floor_us and rows >= 128:
            us -= slope * number(row, "global_tokens")
            values.append(((number(row, "local_experts"),), rows, us))
    note = (
        f"moe/sglang/0.5.10, less {1e3 * slope:.1f} ns per global token; launch-bound rows left out"
    )
    return Table(("active",), "rows", averaged(values), note)


def collector_us_per_token(found: Iterable[Row]) -> float:
    """Median slope of time over global tokens among rows of equal work per rank, where the work is
    large enough not to be hidden by launches."""
    groups: dict[float, list[tuple[float, float]]] = {}
    for row in found:
        rows = number(row, "local_experts") * number(row, "mean_tokens_per_local_expert")
        if rows >= 16384:
            point = number(row, "global_tokens"), number(row, "latency_ms") * 1e3
            groups.setdefault(rows, []).append(point)
    return median(linear_regression(*zip(*points, strict=True)).slope for points in groups.values())


def decode_table(folder: Path, file: str) -> Table:
    """Latent attention of decode over a bf16 cache."""
    points = averaged(
        (
            (number(r, "batch_size"),),
            number(r, "kv_len_minus_isl(step)") + 1,
            number(r, "latency_ms") * 1e3,
        )
        for r in mla_rows(folder, file, "generation")
    )
    return Table(("sequences",), "kv", points, "mla/sglang/0.5.14")


def prefill_table(folder: Path, file: str) -> Table:
    """Latent attention of prefill, bf16."""
    points = averaged(
        ((number(r, "batch_size"),), number(r, "isl_tokens"), number(r, "latency_ms") * 1e3)
        for r in mla_rows(folder, file, "context")
        if number(r, "kv_len_minus_isl(step)") == 0
    )
    return Table(("sequences",), "length", points, "mla/sglang/0.5.14")


def mla_rows(folder: Path, file: str, phase: str) -> Iterator[Row]:
    """Rows of the attention kernel alone."""
    return rows_of(
        folder,
        file,
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


def tables_of(folder: Path, gpu: Gpu) -> dict[str, Table]:
    """All tables of one GPU, by the names that costs look up."""
    system = gpu.system
    tables = {
        "gemm.bf16": gemm_table(folder, gpu, "bfloat16"),
        "gemm.fp8": gemm_table(folder, gpu, "fp8_block"),
        "gemm.fp4": gemm_table(folder, gpu, "nvfp4"),
        "bmm.bf16": bmm_table(folder, system),
        "grouped_gemm_masked.fp8": masked_table(folder, gpu),
        "grouped_gemm_contiguous.fp8": contiguous_table(folder, gpu),
        "dispatch": normal_table(folder, system, "dispatch"),
        "combine": normal_table(folder, system, "combine"),
        "notify": notify_table(folder, system),
        "dispatch_ll": low_latency_table(folder, system, "dispatch"),
        "combine_ll": low_latency_table(folder, system, "combine"),
        "collective": collective_table(folder, system),
    }
    if gpu.attention:
        tables["attention_decode.mla"] = decode_table(folder, gpu.attention)
        tables[f"attention_prefill.{gpu.prefill}"] = prefill_table(folder, gpu.attention)
    return {name: table for name, table in tables.items() if table.points}
