"""Manifold-constrained hyper-connections: the residual as `hc_mult` streams (DeepSeek V4).

Before attention and before the MoE block `hc.*.mix` projects a token's streams to `hc_mult` weights in,
`hc_mult` out and a doubly stochastic matrix between them (Sinkhorn iterations on that small matrix), and
the norm takes the weighted sum of the streams. After each, `hc.*.post` mixes the streams by the matrix
and adds the result to each by its weight. Source: arXiv 2512.24880; SGLang's models/deepseek_v4.py
(hc_pre, hc_post), without its fusion of a post with the next mix, which two-batch overlap turns off.

The projection runs in tf32 there; its operations count as bf16 here, and its time is its traffic.
"""

from __future__ import annotations

from models.counts import BF16, FP32, elementwise
from models.deployment import Kernel, Model
from models.kernels import Assembly
from models.work import work


def coefficients(model: Model) -> int:
    """Values per token that a mix computes: weights in, weights out, and the matrix."""
    return (2 + model.hc_mult) * model.hc_mult


def residual_bytes(model: Model, tokens: int) -> int:
    """Bytes of `tokens` rows of the residual: one stream, or all of them."""
    return tokens * max(1, model.hc_mult) * model.hidden_size * BF16


def projection_bytes(model: Model) -> int:
    """Bytes of one mix's weights, in float32; 0 without hyper-connections."""
    return coefficients(model) * model.hc_mult * model.hidden_size * FP32


def head_mix_bytes(model: Model) -> int:
    """Bytes of the float32 weights that weigh the streams for the head; 0 without hyper-connections."""
    return model.hc_mult * model.hc_mult * model.hidden_size * FP32


def mix(build: Assembly, name: str, tokens: int, source: str) -> Kernel:
    """`hc.NAME.mix`: the coefficients of every token from all its streams."""
    model = build.deployment.model
    streams, count = residual_bytes(model, tokens), coefficients(model)
    size = work(
        "norm",
        flops={"bf16": 2 * tokens * count * model.hc_mult * model.hidden_size},
        read_bytes=streams + projection_bytes(model),
        write_bytes=tokens * count * FP32,
        rows=tokens,
        columns=model.hc_mult * model.hidden_size,
    )
    return build.kernel(f"hc.{name}.mix", size, (source,), {f"hc.{name}": tokens * count * FP32})


def weighted_norm(
    build: Assembly, name: str, part: str, tokens: int, reads: str, out: str
) -> Kernel:
    """A norm of the weighted sum of the streams."""
    model = build.deployment.model
    nbytes = tokens * model.hidden_size * BF16
    columns = model.hc_mult * model.hidden_size
    size = elementwise("norm", tokens, columns, residual_bytes(model, tokens), nbytes)
    return build.kernel(name, size, (reads, f"hc.{part}"), {out: nbytes})


def post(build: Assembly, name: str, tokens: int, result: str, streams: str, out: str) -> Kernel:
    """`hc.NAME.post`: the streams mixed, and the result added to each."""
    model = build.deployment.model
    nbytes = residual_bytes(model, tokens)
    read = nbytes + tokens * model.hidden_size * BF16
    size = elementwise("add", tokens, model.hc_mult * model.hidden_size, read, nbytes)
    return build.kernel(f"hc.{name}.post", size, (result, streams, f"hc.{name}"), {out: nbytes})
