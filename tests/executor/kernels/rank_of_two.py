"""One rank of an exchange of two ranks or more: in the interpreter, where peers' regions are files that all map,
or on a GPU of its own, where they are symmetric memory.

Run as `rank_of_two.py CASES RANK FOLDER RANKS`, a case being THROUGH-DTYPE, several with commas between
them; prints each when it is done. Regions that are files serve one case.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from executor.collective_exchange import Collective
from executor.kernels import gemm, low_latency, normal
from executor.kernels.interpreted import INTERPRETED
from executor.kernels.peer_memory import PeerMemory, symmetric
from tests.executor.kernels.limits import BF16_EXCHANGE, FP8_EXCHANGE

RANKS = int(sys.argv[4])
EXPERTS, HIDDEN, TOP_K, MOST = 3 * RANKS, 256, 3, 9
DEADLINE_NS = 60_000_000_000
PATIENCE = timedelta(seconds=90)
Drawn = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def device_of(rank: int) -> torch.device:
    """This rank's."""
    return torch.device("cpu") if INTERPRETED else torch.device("cuda", rank)


def meet(folder: Path, rank: int) -> None:
    """Join the other ranks' processes."""
    store = f"file://{folder}/meet"
    dist.init_process_group("gloo", store, rank=rank, world_size=RANKS, timeout=PATIENCE)


def mapped(folder: Path, nbytes: int, rank: int) -> PeerMemory:
    """Regions that all ranks write: files of the folder, which the parent made, or GPU memory."""
    if not INTERPRETED:
        return symmetric(nbytes, dist.group.WORLD, device_of(rank))
    regions = [
        torch.from_file(str(folder / f"{peer}"), shared=True, size=nbytes, dtype=torch.uint8)
        for peer in range(RANKS)
    ]
    addresses = torch.tensor([region.data_ptr() for region in regions])
    return PeerMemory(regions[rank], addresses, rank, regions)


def drawn(step: int, device: torch.device) -> list[Drawn]:
    """Rows, ids and weights of all ranks; empty, one-hot and dropped choices come up."""
    torch.manual_seed(step)
    ranks = []
    for tokens in (9, (4, 0, 7)[step], 5, (0, 3, 1)[step])[:RANKS]:
        ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(tokens + 1)])[:tokens]
        if step == 2:
            ids[:] = torch.tensor([1, 0, 2])
        if tokens:
            ids[0, 1] = -1
        one = (torch.randn(tokens, HIDDEN).bfloat16(), ids, torch.rand(tokens, TOP_K))
        ranks.append((one[0].to(device), one[1].to(device), one[2].to(device)))
    return ranks


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as FP8 with a scale for each 128 values."""
    groups = x.float().unflatten(-1, (-1, 128))
    scales = groups.abs().amax(-1).clamp(min=1e-4) / 448
    return (groups / scales[..., None]).to(gemm.FP8).flatten(-2), scales


def shape_of(fp8: bool) -> normal.NormalShape:
    """A small exchange."""
    return normal.NormalShape(RANKS, EXPERTS, HIDDEN, TOP_K, MOST, HIDDEN // 128 if fp8 else 0)


def normal_case(folder: Path, rank: int, fp8: bool) -> None:
    """Through memory that all ranks reach."""
    shape = shape_of(fp8)
    memory = mapped(folder, normal.region_bytes(shape), rank)
    round_trips(normal.Normal(memory, shape, deadline_ns=DEADLINE_NS), rank, fp8)


def collective_case(folder: Path, rank: int, fp8: bool) -> None:
    """Through a process group."""
    group = dist.group.WORLD if INTERPRETED else dist.new_group(backend="nccl")
    round_trips(Collective(shape_of(fp8), group, device_of(rank)), rank, fp8)


def low_latency_case(folder: Path, rank: int, fp8: bool) -> None:
    """Low latency, each rank's sends met by the other's waits; the rows of one expert twice."""
    shape = low_latency.Shape(RANKS, EXPERTS, HIDDEN, TOP_K, MOST, fp8)
    memory = mapped(folder, low_latency.region_bytes(shape), rank)
    exchange = low_latency.LowLatency(memory, shape, deadline_ns=DEADLINE_NS)
    for step in range(3):
        ranks = drawn(step, device_of(rank))
        x, ids, weights = ranks[rank]
        exchange.send_dispatch(x, ids, step % 2, 3)
        rows, counts = exchange.receive_dispatch(step % 2)
        values = gemm.dequantised_rows(rows)
        y = torch.full_like(values, float("nan"))
        for local in range(shape.local_experts):
            expert = rank * shape.local_experts + local
            count = sum(int((chosen == expert).sum()) for _, chosen, _ in ranks)
            assert int(counts[local]) == count
            y[local, :count] = values[local, :count] * (1 + expert)
        exchange.send_combine(y.bfloat16(), step % 2, 3)
        out = exchange.receive_combine(ids, weights, step % 2)
        reference = low_latency.plain_combine(x, ids, weights)
        limit = FP8_EXCHANGE if fp8 else BF16_EXCHANGE
        assert (out.float() - reference).norm() <= limit * reference.norm()
    assert int(exchange.error) == 0


def round_trips(exchange: normal.Normal | Collective, rank: int, fp8: bool) -> None:
    """Dispatch, multiply each row by a factor of its experts, combine; three times."""
    shape = exchange.shape
    for step in range(3):
        ranks = drawn(step, exchange.error.device)
        _, ids, weights = ranks[rank]
        route = exchange.layout(ids, step % 2)
        exchange.notify(route)
        sent = [quantised(row[0]) if fp8 else row[0] for row in ranks]
        exchange.transfer(sent[rank], ids, weights, route, num_sms=3)
        expected = normal.plain_transfer([row[1] for row in ranks], rank, shape.local_experts)
        assert int(route.plan[RANKS]) == len(expected), (route.plan, expected)
        check_counts(route.plan[RANKS + 1 :], ranks, rank, shape.local_experts)
        arrived = exchange.arrived(len(expected), step % 2)
        rows = gemm.dequantised_rows((arrived.rows, arrived.scales) if fp8 else arrived.rows)
        for place, (source, token) in enumerate(expected):
            assert torch.equal(rows[place], gemm.dequantised_rows(sent[source])[token])
            local = ranks[source][1][token] - rank * shape.local_experts
            here = (ranks[source][1][token] >= 0) & (local >= 0) & (local < shape.local_experts)
            assert torch.equal(arrived.ids[place], torch.where(here, local, -1).int())
            assert torch.equal(arrived.weights[place], ranks[source][2][token])
        factors = torch.where(
            arrived.ids >= 0, arrived.weights * (1 + arrived.ids + rank * shape.local_experts), 0.0
        ).sum(1)
        results = exchange.results(MOST * RANKS, step % 2).fill_(float("nan"))
        results[: len(expected)] = rows * factors[:, None]
        out = exchange.combine(route, num_sms=2)
        whole = torch.where(ids >= 0, weights * (1 + ids), 0.0).sum(1)
        reference = gemm.dequantised_rows(sent[rank]) * whole[:, None]
        assert torch.allclose(out.float(), reference, rtol=2e-2, atol=2e-2)
    assert int(exchange.error) == 0


def check_counts(
    counts: torch.Tensor,
    ranks: list[Drawn],
    rank: int,
    local_experts: int,
) -> None:
    """Padded counts of the local experts."""
    for local, count in enumerate(counts.tolist()):
        rows = sum(int((ids == rank * local_experts + local).sum()) for _, ids, _ in ranks)
        assert count == -(-rows // 128) * 128


def lost_peer(folder: Path, rank: int, fp8: bool) -> None:
    """A rank whose peer says nothing gets a code, not a hang."""
    shape = normal.NormalShape(RANKS, EXPERTS, HIDDEN, TOP_K, MOST, 0)
    memory = mapped(folder, normal.region_bytes(shape), rank)
    exchange = normal.Normal(memory, shape, deadline_ns=1_000_000)
    exchange.notify(exchange.layout(drawn(0, device_of(rank))[rank][1]))
    assert int(exchange.error) == 3001 + (1 - rank)


CASES = {
    "normal": normal_case,
    "low_latency": low_latency_case,
    "collective": collective_case,
    "lost": lost_peer,
}


def main() -> None:
    """The cases in turn; a lost peer's rank is alone."""
    wanted = [case.split("-") for case in sys.argv[1].split(",")]
    rank, folder = int(sys.argv[2]), Path(sys.argv[3])
    if not INTERPRETED:
        torch.cuda.set_device(rank)
    together = wanted != [["lost", "bf16"]]
    if together:
        meet(folder, rank)
    for through, dtype in wanted:
        CASES[through](folder, rank, dtype == "fp8")
        if together:
            dist.barrier()  # a region is given back when nobody uses it any more
        sys.stdout.write(f"{through}-{dtype}\n")
        sys.stdout.flush()
    if together:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
