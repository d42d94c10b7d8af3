"""One thread a process: tests run beside each other, and more threads would only wait for cores. And few
looks for garbage, which would go through all collected tests each time. Without a GPU's driver Triton's
kernels are the interpreter's, whichever test imports them first."""

import gc
import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


def pytest_collection_finish() -> None:
    """What collection has made stays to the end."""
    from moe_overlap.cli import COLLECT_AFTER

    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
