"""The Triton kernels beside plain torch, interpreted on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = """
import torch
from executor import small_kernels as k
from executor.plain_layer import rms_norm, rotate

torch.manual_seed(0)

def near(a, b, tolerance):
    a, b = a.float(), b.float()
    assert ((a - b).norm() / b.norm()) < tolerance, ((a - b).norm() / b.norm())

x = torch.randn(5, 384).bfloat16()
y = torch.randn(5, 384).bfloat16()
w = torch.rand(384).bfloat16()
near(k.rms_norm(x, w), rms_norm(x.double(), w.double()), 1e-2)
near(k.rms_norm(x[:, 128:256], w[:128]), rms_norm(x[:, 128:256].double(), w[:128].double()), 1e-2)
total, normed = k.add_norm(x, y, w)
near(total, x.double() + y.double(), 1e-2)
near(normed, rms_norm(x.double() + y.double(), w.double()), 1e-2)

# The interpreter cuts FP8 casts off where a GPU rounds, which doubles their error: hence 7e-2.
def back(values, scales):
    return values.float() * scales.repeat_interleave(128, dim=-1).float()

for column_major in (False, True):
    values, scales = k.quantise(x, column_major=column_major)
    near(back(values, scales), x, 7e-2)
    assert scales.stride() == ((1, 8) if column_major else (3, 1))

double = torch.randn(6, 512).bfloat16()
gate, up = double.double().chunk(2, -1)
plain = torch.nn.functional.silu(double[:, :256]) * double[:, 256:]
near(k.silu_mul(double), plain, 1e-2)
near(back(*k.silu_mul_quantise(double)), torch.nn.functional.silu(gate) * up, 7e-2)
masked, scales = k.silu_mul_quantise_masked(double.view(2, 3, 512), torch.tensor([2, 3], dtype=torch.int32))
expected = (torch.nn.functional.silu(gate) * up).view(2, 3, 256)
near(back(masked, scales)[0, :2], expected[0, :2], 7e-2)
near(back(masked, scales)[1], expected[1], 7e-2)

# Keys of heads in one block, in several, and in a last one that is not full; odd sizes too.
for heads, nope, rope, values in ((2, 128, 64, 128), (80, 32, 16, 48), (3, 24, 8, 40)):
    kv = torch.randn(5, heads * (nope + values)).bfloat16()
    turned = torch.randn(5, rope).bfloat16()
    apart = kv.unflatten(1, (heads, -1))[..., :nope], turned.unsqueeze(1).expand(-1, heads, -1)
    joined = k.join_keys(kv, turned, heads, nope)
    assert joined.is_contiguous() and torch.equal(joined, torch.cat(apart, dim=-1))
assert k.join_keys(kv[:0], turned[:0], 3, 24).shape == (0, 3, 32)

q = torch.randn(4, 3, 16).bfloat16()
positions = torch.tensor([0, 3, 7, 100])
wide, joint = torch.randn(4, 3, 24).bfloat16(), torch.randn(4, 40).bfloat16()
for query, key in ((q, joint[:, :16].contiguous()), (wide[..., 8:], joint[:, 24:])):
    before = query.double()
    turned = k.rotate(query, key, positions, 10000.0)
    near(query, rotate(before, positions), 1e-2)
    near(turned, rotate(key.double().unsqueeze(1), positions).squeeze(1), 1e-2)
untouched = wide.clone()
k.rotate(wide[..., 8:], joint[:, 24:], positions, 10000.0)
assert torch.equal(wide[..., :8], untouched[..., :8])

scores = torch.randn(2, 3, 12).bfloat16()
expected = torch.zeros(2, 3, 12)
for b, n in enumerate((5, 12)):
    expected[b, :, :n] = (scores[b, :, :n].float() * 0.5).softmax(-1)
near(k.softmax_(scores.clone(), torch.tensor([5, 12], dtype=torch.int32), 0.5), expected, 1e-2)

rows = torch.randn(4, 256).bfloat16()
values, scales = k.quantise(rows, column_major=False)
ids = torch.tensor([[0, 2], [2, -1], [-1, -1], [1, 0]])
starts = torch.tensor([0, 4, 8, 12], dtype=torch.int32)
out, out_scales, expert_of, places = k.permute(values, scales, ids, starts, starts[:-1].clone(), 12)
assert expert_of.tolist() == [0] * 4 + [1] * 4 + [2] * 4
for r in range(4):
    for j in range(2):
        at = int(places[r, j])
        if ids[r, j] < 0:
            assert at == -1
        else:
            assert expert_of[at] == ids[r, j]
            assert torch.equal(back(out, out_scales)[at], back(values, scales)[r])
weights = torch.rand(4, 2)
gathered = k.weighted_sum(back(out, out_scales).nan_to_num().bfloat16(), places, weights)
plain = (weights * (ids >= 0)).sum(1, keepdim=True) * back(values, scales)
near(gathered, plain, 2e-2)
cache = torch.zeros(2, 5, 24).bfloat16()
latent, key = torch.randn(3, 16).bfloat16(), torch.randn(3, 8).bfloat16()
k.store_latents(latent, key, torch.tensor([1, 0, 1]), torch.tensor([4, 2, 0]), cache)
assert torch.equal(cache[1, 4], torch.cat((latent[0], key[0])))
assert torch.equal(cache[0, 2], torch.cat((latent[1], key[1])))
assert cache.count_nonzero() == 72
near(k.add_three(x, y, x), 2 * x.float() + y.float(), 1e-2)
print("ok")
"""


def test_kernels_equal_plain_torch() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.stdout.strip() == "ok", done.stderr[-2000:]
