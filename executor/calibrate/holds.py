"""How a kernel shares out its work, told by holding SMs beside it: how much later it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from executor.calibrate.cases import put_on
from executor.calibrate.kernel_times import longest_kernel, traced
from executor.calibrate.plan import LADDER_TOKENS_LOW, Task
from executor.calibrate.store import Record
from executor.calibrate.subjects import Subject, compute_subject
from executor.production_setup import Session
from executor.sessions import Sessions
from executor.spin_library import STAMP_WORDS, SpinArgs, SpinLibrary, build
from scenarios import load
from scenarios.resolve import resolve

HELD_SMS = 24
# Of the kernel's time alone: how long the SMs are held after its start.
HOLDS = (0.25, 0.5, 0.75)
REPEATS = 5
SLEEP_NS = 2_000_000
LEAD_NS = 30_000
# The kinds of work that each subject speaks for.
KINDS = {
    "dense": ("gemm",),
    "grouped": ("grouped_gemm_contiguous",),
    "weights": ("grouped_gemm_masked",),
    "attention": ("attention_prefill",),
}
SMEM_BYTES = 227 * 1024


@dataclass
class HoldBench:
    """Measures `hold` tasks on this rank; every rank meets at the gate equally often."""

    sessions: Sessions
    scenarios: dict[str, str]
    num_sms: int
    hardware: str = ""

    def measure(self, task: Task) -> Sequence[Record]:
        """The kernel's time alone and beside held SMs, and its launch."""
        session = self._session()
        subject = compute_subject(session, task.text("compute"), self.num_sms, self.num_sms)
        subject.call()
        kernel = longest_kernel(traced(lambda: subject.call()))
        holder = Holder(session)
        alone = holder.median_ns(subject, 0)
        holds = [round(share * alone) for share in HOLDS]
        return [
            {
                "what": "hold",
                "compute": subject.name,
                "kinds": list(KINDS[subject.name]),
                "held_sms": HELD_SMS,
                "alone_ns": round(alone),
                "holds": [[ns, round(holder.median_ns(subject, ns))] for ns in holds],
                "kernel": kernel.name[:400],
                "ctas": kernel.ctas,
                "threads": kernel.threads,
                "registers": kernel.registers,
                "smem_bytes": kernel.smem_bytes,
            }
        ]

    def _session(self) -> Session:
        ranks = self.sessions.ranks
        settings = put_on(ranks, self.hardware)
        if ranks > 1:
            return self.sessions.of(resolve(load(self.scenarios["prefill"], settings)).deployment)
        settings.append(f"phase.decode.batch_per_rank={LADDER_TOKENS_LOW}")
        return self.sessions.of(resolve(load(self.scenarios["decode"], settings)).deployment)


class Holder:
    """Runs a kernel while spin kernels hold whole SMs for a time that starts with it."""

    def __init__(self, session: Session) -> None:
        properties = torch.cuda.get_device_properties(session.device)
        arch = f"sm_{properties.major}{properties.minor}"
        self._library = SpinLibrary(build(arch), SMEM_BYTES)
        self._gate = session.gate
        self._streams = (session.pool.stream("main", 0), session.pool.stream("alt", 0))
        self._stamps = torch.zeros(
            2 * HELD_SMS, STAMP_WORDS, dtype=torch.int64, device=session.device
        )

    def median_ns(self, subject: Subject, hold_ns: int) -> float:
        """Its time from start to end, the SMs held for `hold_ns` of it."""
        return median(self._once(subject, hold_ns) for _ in range(REPEATS))

    def _once(self, subject: Subject, hold_ns: int) -> float:
        main, beside = self._streams
        torch.cuda.synchronize()
        self._gate.launch(main, SLEEP_NS)
        origin, start, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        origin.record(main)
        beside.wait_event(origin)
        if hold_ns:
            self._spin(beside, HELD_SMS, SMEM_BYTES, LEAD_NS + hold_ns)
        self._spin(main, 1, 0, LEAD_NS)
        with torch.cuda.stream(main):
            start.record(main)
            subject.call()
            end.record(main)
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e6

    def _spin(self, stream: torch.cuda.Stream, ctas: int, smem_bytes: int, ns: int) -> None:
        first = self._stamps.data_ptr() + (0 if ctas > 1 else HELD_SMS * STAMP_WORDS * 8)
        args = SpinArgs(stamps=first, tile_ns=ns, tiles=ctas, rank=0, ranks=0)
        self._library.launch(stream.cuda_stream, ctas, 32, smem_bytes, False, args)
