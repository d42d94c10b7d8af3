"""MLA decode attention: our two forms beside torch's products, as the production set runs them.

    python -m benchmarks.triton_attention

DeepSeek-V3's 128 heads over 4096 cached tokens a sequence, on one GPU. Every form is checked against
plain float32 before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.triton_timing import time_graph
from executor import small_kernels as small
from executor.kernels.mla_decode import mla_decode, plain_mla_decode

HEADS, LATENT, ROPE, LENGTH = 128, 512, 64, 4096
SEQUENCES = (8, 32, 64, 128)
SCALE = 192**-0.5
LARGEST_ERROR = 0.01


@dataclass(frozen=True)
class Layer:
    """Queries, cache and lengths of one layer."""

    q_latent: torch.Tensor
    q_rope: torch.Tensor
    cache: torch.Tensor
    lengths: torch.Tensor

    @staticmethod
    def draw(sequences: int) -> Layer:
        """Random, every cache full."""
        width = LATENT + ROPE
        cache = torch.randn(sequences, LENGTH, width, device="cuda", dtype=torch.bfloat16)
        query = torch.randn(sequences, HEADS, width, device="cuda", dtype=torch.bfloat16)
        lengths = torch.full((sequences,), LENGTH, device="cuda", dtype=torch.int32)
        return Layer(query[..., :LATENT], query[..., LATENT:], cache, lengths)

    def ours(self, splits: int | None, specialised: bool) -> torch.Tensor:
        """One of our forms."""
        return mla_decode(
            self.q_latent, self.q_rope, self.cache, self.lengths, SCALE, splits, specialised
        )

    def torchs(self) -> torch.Tensor:
        """Two products and a softmax between them."""
        query = torch.cat((self.q_latent, self.q_rope), dim=-1)
        scores = torch.bmm(query, self.cache.transpose(1, 2))
        chances = small.softmax_(scores, self.lengths, SCALE)
        return torch.bmm(chances, self.cache[..., :LATENT])


def main() -> None:
    """Every form at every batch; the last lines are the table."""
    lines = []
    for sequences in SEQUENCES:
        layer = Layer.draw(sequences)
        few = slice(0, 4)
        reference = plain_mla_decode(
            layer.q_latent[few], layer.q_rope[few], layer.cache[few], layer.lengths[few], SCALE
        )
        forms: dict[str, Callable[[], torch.Tensor]] = {
            "plain, one share": partial(layer.ours, 1, False),
            "plain": partial(layer.ours, None, False),
            "specialised, one share": partial(layer.ours, 1, True),
            "specialised": partial(layer.ours, None, True),
            "torch": layer.torchs,
        }
        for name, call in forms.items():
            line = f"{sequences:4d} sequences  {name:24s}"
            try:
                out = call()
                torch.cuda.synchronize()
                error = float((out[few].float() - reference).norm() / reference.norm())
                us = time_graph(call, 4, 9).us if error < LARGEST_ERROR else None
                lines.append(f"{line} {us} us  error {error:.4f}")
            except (RuntimeError, ValueError, TypeError) as reason:
                lines.append(f"{line} failed: {str(reason)[-300:]}")
            print(lines[-1], flush=True)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
