"""How tensors of an emulated exchange reach the peers: one process, threads, or gloo.

Every rank has a mailbox; an exchange posts one message for each destination and is over when one
from each source has come. Posting never blocks, so ranks may take exchanges of different streams
in different orders, as on a device.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist

from executor.kernel_set import PeerLost

Message = tuple[torch.Tensor, ...]


class Transport(Protocol):
    """Messages between ranks, keyed by a name that both sides derive from the exchange."""

    def post(self, key: str, dst: int, message: Message) -> None:
        """Send without blocking."""
        ...

    def take(self, key: str, src: int) -> Message | None:
        """The message if it has come; it is removed."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Block until any message comes; False when none came in time."""
        ...


@dataclass
class Mailbox:
    """What has come for one rank."""

    _messages: dict[tuple[str, int], Message] = field(default_factory=dict)
    _lost: dict[int, str] = field(default_factory=dict)
    _arrival: threading.Condition = field(default_factory=threading.Condition)
    _arrivals: int = 0
    _seen: int = 0

    def put(self, key: str, src: int, message: Message) -> None:
        """Deliver a message."""
        with self._arrival:
            self._messages[key, src] = message
            self._arrivals += 1
            self._arrival.notify_all()

    def lose(self, src: int, reason: str) -> None:
        """Note that a source is gone."""
        with self._arrival:
            self._lost[src] = reason
            self._arrivals += 1
            self._arrival.notify_all()

    def take(self, key: str, src: int) -> Message | None:
        """The message, None when it has not come; PeerLost when it never will."""
        with self._arrival:
            message = self._messages.pop((key, src), None)
            if message is None and src in self._lost:
                raise PeerLost(f"rank {src} is gone ({self._lost[src]}); {key} needs it")
            return message

    def wait(self, timeout_s: float) -> bool:
        """Block until something comes that no earlier `wait` has reported."""
        with self._arrival:
            came = self._arrival.wait_for(lambda: self._arrivals != self._seen, timeout_s)
            self._seen = self._arrivals
            return came


class InProcess:
    """Ranks of one process, each on its own thread; one rank alone is loopback."""

    def __init__(self, rank: int, mailboxes: Sequence[Mailbox]) -> None:
        self._rank = rank
        self._mailboxes = mailboxes

    def post(self, key: str, dst: int, message: Message) -> None:
        """Copy into the destination's mailbox."""
        self._mailboxes[dst].put(key, self._rank, tuple(t.clone() for t in message))

    def take(self, key: str, src: int) -> Message | None:
        """From the own mailbox."""
        return self._mailboxes[self._rank].take(key, src)

    def wait(self, timeout_s: float) -> bool:
        """Until anything comes."""
        return self._mailboxes[self._rank].wait(timeout_s)


def in_process(world_size: int) -> tuple[InProcess, ...]:
    """One connected transport a rank."""
    mailboxes = [Mailbox() for _ in range(world_size)]
    return tuple(InProcess(rank, mailboxes) for rank in range(world_size))


class Gloo:
    """Ranks of a gloo process group. A thread for each peer receives into the mailbox."""

    def __init__(self, group: Any = None) -> None:
        self._rank = dist.get_rank(group)
        self._mailbox = Mailbox()
        self._peers = [r for r in range(dist.get_world_size(group)) if r != self._rank]
        for peer in self._peers:
            threading.Thread(target=self._receive, args=(peer,), daemon=True).start()

    def post(self, key: str, dst: int, message: Message) -> None:
        """Send the key, the tensors' shapes and types, and the tensors."""
        if dst == self._rank:
            self._mailbox.put(key, dst, tuple(t.clone() for t in message))
            return
        try:
            _send_object((key, [(t.dtype, tuple(t.shape)) for t in message]), dst)
            for tensor in message:
                if tensor.numel():
                    dist.send(tensor.contiguous(), dst)
        except RuntimeError as error:
            raise PeerLost(f"rank {dst} is gone ({_first_line(error)}); {key} needs it") from None

    def take(self, key: str, src: int) -> Message | None:
        """From the own mailbox."""
        return self._mailbox.take(key, src)

    def wait(self, timeout_s: float) -> bool:
        """Until anything comes."""
        return self._mailbox.wait(timeout_s)

    def close(self) -> None:
        """Tell the peers that nothing more comes."""
        for peer in self._peers:
            _send_object(None, peer)

    def _receive(self, src: int) -> None:
        try:
            while (header := _recv_object(src)) is not None:
                key, kinds = header
                tensors = tuple(torch.empty(shape, dtype=dtype) for dtype, shape in kinds)
                for tensor in tensors:
                    if tensor.numel():
                        dist.recv(tensor, src)
                self._mailbox.put(key, src, tensors)
        except RuntimeError as error:
            self._mailbox.lose(src, _first_line(error))


def _send_object(value: Any, dst: int) -> None:
    dist.send_object_list([value], dst)


def _recv_object(src: int) -> Any:
    box = [None]
    dist.recv_object_list(box, src)
    return box[0]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
