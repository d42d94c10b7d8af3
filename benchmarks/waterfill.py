"""What Waterfill is predicted to gain, by skew of the routing and placement of the experts.

    python -m benchmarks.waterfill [SCENARIO] [SEEDS]

For each alpha and placement: the busiest rank's copies over the mean, with the shared copies at home and
where Waterfill sends them, and the throughput of `baseline+fused+waterfill` over `baseline+fused`, as
the mean over seeds with its extremes.
"""

from __future__ import annotations

import sys
from statistics import fmean

from models.waterfill import waterfill_ranks
from moe_overlap.comparison import compare
from scenarios import load
from scenarios.resolve import resolve

ALPHAS = (0.0, 0.4, 0.8, 1.2)
PLACEMENTS = (
    ("in order", ["routing.redundant_experts=0", "routing.eplb=false"]),
    ("EPLB, 16 redundant", ["routing.redundant_experts=16", "routing.eplb=true"]),
    ("EPLB, 32 redundant", ["routing.redundant_experts=32", "routing.eplb=true"]),
)
ROWS = ("baseline+fused", "baseline+fused+waterfill")


def gain(scenario: str, settings: list[str]) -> tuple[float, float, float]:
    """Imbalance at home and filled, and the gain in percent."""
    loaded = load(scenario, [*settings, f"schedules=[{', '.join(ROWS)}]"])
    routing = resolve(loaded).routing
    rows = {row["name"]: row["step_us"] for row in compare(loaded).document()["schedules"]}
    return (
        routing.with_shared_slot().imbalance(),
        routing.with_shared_slot(waterfill_ranks(routing)).imbalance(),
        100 * (rows[ROWS[0]] / rows[ROWS[1]] - 1),
    )


def main(scenario: str = "deepseek-v3-h200-ep16-prefill", seeds: int = 3) -> None:
    """Prints one Markdown row per alpha and placement."""
    print("| alpha | experts | busiest rank, at home | with Waterfill | throughput |")
    print("| --- | --- | --- | --- | --- |")
    for name, placement in PLACEMENTS:
        for alpha in ALPHAS:
            runs = [
                gain(scenario, [*placement, f"routing.alpha={alpha}", f"routing.seed={seed}"])
                for seed in range(seeds)
            ]
            home, filled, gains = zip(*runs, strict=True)
            print(
                f"| {alpha} | {name} | {fmean(home):.2f} | {fmean(filled):.2f} "
                f"| {fmean(gains):+.1f} % ({min(gains):+.1f} to {max(gains):+.1f}) |",
                flush=True,
            )


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if len(arguments) > 1:
        main(arguments[0], int(arguments[1]))
    elif arguments:
        main(arguments[0])
    else:
        main()
