"""Our Triton kernels beside DeepGEMM and DeepEP in one run, correctness first.

    torchrun --nproc-per-node 2 -m benchmarks.triton_ratios

Every record is one line of `triton_ratios_rank{R}.jsonl` in the folder named by OUT as soon as it is
there; the last lines printed are the table. Rank 0 measures masked GEMMs, rank 1 contiguous ones.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.triton_exchange_ratios import (
    DECODE_TOKENS,
    EXPERTS,
    HIDDEN,
    PREFILL_SMS,
    PREFILL_TOKENS,
    LowLatencyCases,
    NormalCase,
    SignalCases,
)
from benchmarks.triton_gemm_ratios import CONTIGUOUS, MASKED, Record, compare
from executor.kernel_set import ExecutorError
from executor.triton_gemm import FEW_ROWS

PARTS = ("low", "normal", "signals", "gemm")
FAILURES = (RuntimeError, ExecutorError, ValueError, TypeError, AttributeError)


class Records:
    """Records of this rank, written as they come."""

    def __init__(self, rank: int) -> None:
        folder = Path(os.environ.get("OUT", "."))
        self._file = (folder / f"triton_ratios_rank{rank}.jsonl").open("w")
        self._began = time.monotonic()
        self.rank = rank
        self.all: list[Record] = []

    def report(self, record: Record) -> None:
        """Keep a record and print it."""
        record = {"rank": self.rank, "at_s": round(time.monotonic() - self._began, 1)} | record
        self.all.append(record)
        line = json.dumps(record)
        self._file.write(line + "\n")
        self._file.flush()
        print(line, flush=True)

    def attempt(self, what: str, call: Callable[[], Any]) -> Any:
        """The call's result; a failure is a record and None."""
        try:
            return call()
        except FAILURES as error:
            reason = f"{type(error).__name__}: {error}"
            self.report({"what": "failed", "part": what, "reason": reason[-1500:]})
            return None


def deep_ep(mode: str, ranks: int) -> Any:
    """DeepEP's buffer of this rank."""
    from executor.libraries import DeepEp

    most = max(DECODE_TOKENS) if mode == "low_latency" else PREFILL_TOKENS
    return DeepEp(
        dist.group.WORLD,
        mode,
        hidden=HIDDEN,
        num_experts=EXPERTS,
        max_tokens=most,
        most_sms=PREFILL_SMS,
    )


def agreed(mine: bool) -> bool:
    """Whether all ranks say yes."""
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, mine)
    return all(answers)


def low(records: Records, ranks: int) -> LowLatencyCases | None:
    """Low latency, checked and measured."""
    cases: LowLatencyCases | None = records.attempt(
        "low", lambda: LowLatencyCases(records.rank, ranks, records.report)
    )
    if not agreed(cases is not None) or cases is None:
        return None
    right = [records.attempt("low check", partial(cases.check, n)) for n in DECODE_TOKENS]
    if not agreed(all(right)):
        return None
    library = records.attempt("DeepEP", lambda: deep_ep("low_latency", ranks))
    library = library if agreed(library is not None) else None
    records.attempt("low latency", lambda: cases.measure(library))
    return cases


def normal(records: Records, ranks: int) -> None:
    """Normal mode, checked and measured."""
    case: NormalCase | None = records.attempt(
        "normal", lambda: NormalCase(records.rank, ranks, records.report)
    )
    if not agreed(case is not None) or case is None:
        return
    if not agreed(bool(records.attempt("normal check", case.check))):
        return
    library = records.attempt("DeepEP", lambda: deep_ep("normal", ranks))
    library = library if agreed(library is not None) else None
    records.attempt("normal", lambda: case.measure(library))


def table(records: Records) -> None:
    """What matters, one aligned line each."""
    kinds = ("gemm ratio", "budget", "low latency", "normal", "normal ratio", "signals", "failed")
    hidden = ("tiling", "rank", "at_s", "what", "launch", "goal", "low_us", "high_us")
    for record in records.all:
        if record["what"] in kinds:
            rest = (f"{key}={value}" for key, value in record.items() if key not in hidden)
            print(f"{record['what']:12s} " + "  ".join(rest), flush=True)


def main() -> None:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("gloo", timeout=timedelta(seconds=200))
    ranks = dist.get_world_size()
    records = Records(rank)
    cases = low(records, ranks) if {"low", "signals"} & set(arguments.parts) else None
    if "signals" in arguments.parts and cases is not None:
        found = cases
        records.attempt("signals", lambda: SignalCases(found).measure(FEW_ROWS))
    if "normal" in arguments.parts:
        normal(records, ranks)
    if "gemm" in arguments.parts:
        for seed, case in enumerate(MASKED if rank == 0 else CONTIGUOUS):
            records.attempt(case.name, partial(compare, case, seed, records.report))
    agreed(True)
    for turn in range(ranks):
        if turn == rank:
            table(records)
        agreed(True)
    os._exit(0)


if __name__ == "__main__":
    main()
