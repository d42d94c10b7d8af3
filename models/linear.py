"""A linear layer and a gated MLP as kernels."""

from __future__ import annotations

from models.counts import BF16, activation_bytes, elementwise, gemm, quantise
from models.deployment import Kernel
from models.kernels import Assembly


def linear(
    build: Assembly, name: str, source: str, target: str, m: int, n: int, k: int
) -> tuple[Kernel, ...]:
    """`target` [m, n] = `source` [m, k] times the weights of `name`, with the kernel that quantises
    the input where the weights' format needs it."""
    weights = build.deployment.quantization.weights
    if weights == "bf16":
        work = gemm(m, n, k, weights)
        return (build.kernel(name, work, (source,), {target: m * n * BF16}),)
    packed = f"{name}.input"
    return (
        build.kernel(
            f"{name}.quantise",
            quantise(m, k, weights),
            (source,),
            {packed: activation_bytes(m, k, weights)},
        ),
        build.kernel(name, gemm(m, n, k, weights), (packed,), {target: m * n * BF16}),
    )


def gated_mlp(
    build: Assembly, name: str, source: str, target: str, rows: int, intermediate: int
) -> tuple[Kernel, ...]:
    """down(silu(gate(x)) * up(x)) as `{name}.gate_up`, `{name}.act` and `{name}.down`."""
    hidden = build.deployment.model.hidden_size
    gate_up, inner = f"{name}.gate_up.out", f"{name}.act.out"
    act = elementwise(
        "silu_mul", rows, intermediate, 2 * rows * intermediate * BF16, rows * intermediate * BF16
    )
    return (
        *linear(build, f"{name}.gate_up", source, gate_up, rows, 2 * intermediate, hidden),
        build.kernel(f"{name}.act", act, (gate_up,), {inner: rows * intermediate * BF16}),
        *linear(build, f"{name}.down", inner, target, rows, hidden, intermediate),
    )
