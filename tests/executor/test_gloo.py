"""Exchanges between two processes over gloo."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from multiprocessing.queues import Queue

import pytest
import torch

from executor.kernel_set import PeerLost
from executor.transport import Gloo

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def worker(rank: int, port: int, dies: bool, results: Queue[tuple[int, str]]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    transport = Gloo()
    if dies and rank == 1:
        os._exit(1)
    mine = torch.arange(3.0) + 10 * rank
    for key in ("later", "sooner") if rank else ("sooner", "later"):
        try:
            transport.post(key, 1 - rank, (mine, torch.empty(0, 4)))
        except PeerLost as error:
            results.put((rank, f"lost: {error}"))
            return
    try:
        results.put((rank, str([taken(transport, k, 1 - rank) for k in ("sooner", "later")])))
    except PeerLost as error:
        results.put((rank, f"lost: {error}"))
        results.close()
        results.join_thread()
        os._exit(0)
    torch.distributed.barrier()
    transport.close()


def taken(transport: Gloo, key: str, src: int) -> list[float]:
    while (message := transport.take(key, src)) is None:
        assert transport.wait(20.0)
    return message[0].tolist() + list(message[1].shape)


def both(dies: bool) -> dict[int, str]:
    context = multiprocessing.get_context("spawn")
    results: Queue[tuple[int, str]] = context.Queue()
    port = free_port()
    workers = [
        context.Process(target=worker, args=(rank, port, dies, results)) for rank in range(2)
    ]
    for process in workers:
        process.start()
    found = dict(results.get(timeout=60) for _ in range(1 if dies else 2))
    for process in workers:
        process.join(20)
        assert not process.is_alive()
    return found


def test_messages_arrive_whatever_the_order_in_which_they_were_posted() -> None:
    found = both(dies=False)
    assert found[0] == "[[10.0, 11.0, 12.0, 0, 4], [10.0, 11.0, 12.0, 0, 4]]"
    assert found[1] == "[[0.0, 1.0, 2.0, 0, 4], [0.0, 1.0, 2.0, 0, 4]]"


def test_a_peer_that_dies_is_an_error_and_not_a_hang() -> None:
    assert both(dies=True)[0].startswith("lost: rank 1 is gone")


def leaver(rank: int, port: int) -> None:
    """Rank 1 closes half a second after rank 0."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    transport = Gloo()
    torch.distributed.barrier()
    time.sleep(0.5 * rank)
    transport.close()


def test_who_closes_first_ends_well() -> None:
    """Not by `terminate called`, with a thread still inside gloo, which the slower rank then misses."""
    context = multiprocessing.get_context("spawn")
    port = free_port()
    workers = [context.Process(target=leaver, args=(rank, port)) for rank in range(2)]
    for process in workers:
        process.start()
    for process in workers:
        process.join(60)
    assert [process.exitcode for process in workers] == [0, 0]


def waiter(rank: int, port: int, results: Queue[tuple[int, str]]) -> None:
    """Rank 1 computes for longer than the silence that is allowed, then is stopped; rank 0 waits."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    transport = Gloo(silence_s=5.0)
    if rank == 1:
        time.sleep(8.0)
        transport.post("slow", 0, (torch.ones(1),))
        results.put((1, str(os.getpid())))
        time.sleep(300.0)
    try:
        for key in ("slow", "never"):
            while transport.take(key, 1) is None:
                transport.wait(60.0)
            results.put((0, key))
    except PeerLost as error:
        results.put((0, f"lost: {error}"))
        results.close()
        results.join_thread()
        os._exit(0)


def test_a_slow_peer_is_waited_for_and_a_stopped_one_is_lost() -> None:
    context = multiprocessing.get_context("spawn")
    results: Queue[tuple[int, str]] = context.Queue()
    port = free_port()
    workers = [context.Process(target=waiter, args=(rank, port, results)) for rank in range(2)]
    for process in workers:
        process.start()
    first = dict(results.get(timeout=90) for _ in range(2))
    time.sleep(1.0)  # rank 1 lets go of the queue
    os.kill(int(first[1]), signal.SIGSTOP)
    stopped = time.monotonic()
    rank, text = results.get(timeout=60)
    workers[1].kill()
    for process in workers:
        process.join(20)
    assert first[0] == "slow"
    assert rank == 0 and text.startswith("lost: rank 1 is gone") and "never needs it" in text
    assert time.monotonic() - stopped < 15
