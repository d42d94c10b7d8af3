"""Times of what is counted before anything is simulated: routing, Waterfill, checkpoint headers.

python -m benchmarks.experts
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from time import perf_counter

import numpy as np

from models.checkpoint import inspect
from models.checkpoint_files import open_checkpoint
from models.config import load_model
from models.routing import Routing, RoutingSpec, route
from models.waterfill import Plan, choose_ranks, static_plan

MODEL = load_model("deepseek-v3")
SKEWED = RoutingSpec("power_law", alpha=0.8)
EPLB = RoutingSpec("power_law", alpha=0.6, redundant_experts=32, eplb=True)
PROJECTIONS = {"gate_proj": (2048, 7168), "up_proj": (2048, 7168), "down_proj": (7168, 2048)}
LAYERS, DENSE, EXPERTS, SHARDS = 61, 3, 256, 163


def best_of(repeats: int, call: Callable[[], object]) -> float:
    """Least wall time in seconds."""
    times = []
    for _ in range(repeats):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times)


def counted(routing: Routing) -> None:
    """All counts of a routing, none of them cached before."""
    fresh = Routing(routing.ids, routing.num_physical, routing.ep_size)
    fresh.rank_copies(), fresh.distinct_tokens(), fresh.expert_tokens()


def headers(folder: Path) -> None:
    """A DeepSeek-V3-sized FP8 checkpoint of headers in sparse files."""
    shards: list[dict[str, object]] = [{} for _ in range(SHARDS)]
    ends, where, count = [0] * SHARDS, {}, 0
    for layer in range(DENSE, LAYERS):
        for expert in (*(f"experts.{e}" for e in range(EXPERTS)), "shared_experts"):
            for name, (o, k) in PROJECTIONS.items():
                for suffix, dtype, shape, size in (
                    ("weight", "F8_E4M3", (o, k), 1),
                    ("weight_scale_inv", "F32", (o // 128, k // 128), 4),
                ):
                    shard, count = count % SHARDS, count + 1
                    key = f"model.layers.{layer}.mlp.{expert}.{name}.{suffix}"
                    begin, end = ends[shard], ends[shard] + prod(shape) * size
                    shards[shard][key] = {
                        "dtype": dtype,
                        "shape": shape,
                        "data_offsets": (begin, end),
                    }
                    ends[shard], where[key] = end, f"model-{shard:05d}.safetensors"
    for number, (header, end) in enumerate(zip(shards, ends, strict=True)):
        text = json.dumps(header).encode()
        with (folder / f"model-{number:05d}.safetensors").open("wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            stream.truncate(8 + len(text) + end)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "hidden_size": 7168,
        "moe_intermediate_size": 2048,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_hidden_layers": LAYERS,
        "first_k_dense_replace": DENSE,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    (folder / "config.json").write_text(json.dumps(config))


def main() -> None:
    """One line for each."""
    big = route(SKEWED, [8192] * 32, MODEL)
    ids = np.random.default_rng(0).integers(0, 256, (1_000_000, 8)).astype(np.int32)
    static = static_plan(ids, 8, 32)
    visited = Plan(tuple(range(0, 320_000, 10_000)), 0, False)
    cases: dict[str, Callable[[], object]] = {
        "route 32 ranks x 8192 tokens": lambda: route(SKEWED, [8192] * 32, MODEL),
        "count 32 ranks x 8192 tokens": lambda: counted(big),
        "route 72 ranks x 256 tokens, EPLB": lambda: route(EPLB, [256] * 72, MODEL),
        "waterfill 1,000,000 tokens, static": lambda: choose_ranks(ids, 8, 3, static),
        "waterfill 1,000,000 tokens, visited ranks": lambda: choose_ranks(ids, 8, 3, visited),
    }
    for name, call in cases.items():
        print(f"{name:45} {1000 * best_of(3, call):8.0f} ms")
    with tempfile.TemporaryDirectory() as folder:
        headers(Path(folder))
        seconds = best_of(1, lambda: inspect(open_checkpoint(Path(folder))))
        print(f"{'checkpoint, 61 layers of 256 experts':45} {1000 * seconds:8.0f} ms")


if __name__ == "__main__":
    main()
