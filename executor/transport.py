"""How tensors of an emulated exchange reach the peers: one process, threads, or gloo.

Every rank has a mailbox; an exchange posts one message for each destination and is over when one
from each source has come. Posting never blocks, so ranks may take exchanges of different streams
in different orders, as on a device.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from executor.kernel_set import PeerLost

Message = tuple[torch.Tensor, ...]
ALIVE = "alive"
ALIVE_EVERY_S = 2.0
SILENCE_S = 8.0


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
    """Ranks of a gloo process group of its own. For each peer a thread receives into the mailbox and
    another sends a sign of life: a peer that computes for long is waited for, and one from which
    nothing at all comes for `silence_s` is lost. All ranks make one at the same time."""

    def __init__(self, silence_s: float = SILENCE_S) -> None:
        self._rank = dist.get_rank()
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=silence_s))
        self._mailbox = Mailbox()
        self._peers = [r for r in range(dist.get_world_size()) if r != self._rank]
        self._sending = {peer: threading.Lock() for peer in self._peers}
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=body, args=(peer,), daemon=True)
            for peer in self._peers
            for body in (self._receive, self._live)
        ]
        for thread in self._threads:
            thread.start()

    def post(self, key: str, dst: int, message: Message) -> None:
        """Send the key, the tensors' shapes and types, and the tensors."""
        if dst == self._rank:
            self._mailbox.put(key, dst, tuple(t.clone() for t in message))
            return
        try:
            with self._sending[dst]:
                self._send_object((key, [(t.dtype, tuple(t.shape)) for t in message]), dst)
                for tensor in message:
                    if tensor.numel():
                        dist.send(tensor.contiguous(), dst, group=self._group)
        except RuntimeError as error:
            raise PeerLost(f"rank {dst} is gone ({_first_line(error)}); {key} needs it") from None

    def take(self, key: str, src: int) -> Message | None:
        """From the own mailbox."""
        return self._mailbox.take(key, src)

    def wait(self, timeout_s: float) -> bool:
        """Until anything comes."""
        return self._mailbox.wait(timeout_s)

    def close(self) -> None:
        """Tell the peers that nothing more comes, and wait until they have said so too: a thread that is
        inside gloo when the interpreter ends takes the process down."""
        self._closed.set()
        for peer in self._peers:
            with self._sending[peer]:
                self._send_object(None, peer)
        for thread in self._threads:
            thread.join()

    def _receive(self, src: int) -> None:
        try:
            while (header := self._receive_object(src)) is not None:
                if header == ALIVE:
                    continue
                key, kinds = header
                tensors = tuple(torch.empty(shape, dtype=dtype) for dtype, shape in kinds)
                for tensor in tensors:
                    if tensor.numel():
                        dist.recv(tensor, src, group=self._group)
                self._mailbox.put(key, src, tensors)
        except RuntimeError as error:
            self._mailbox.lose(src, _first_line(error))

    def _live(self, dst: int) -> None:
        while not self._closed.wait(ALIVE_EVERY_S):
            try:
                with self._sending[dst]:
                    if self._closed.is_set():
                        return
                    self._send_object(ALIVE, dst)
            except RuntimeError:
                return  # the receiving side reports it

    def _send_object(self, value: Any, dst: int) -> None:
        dist.send_object_list([value], dst, group=self._group)

    def _receive_object(self, src: int) -> Any:
        box = [None]
        dist.recv_object_list(box, src, group=self._group)
        return box[0]


def _first_line(error: Exception) -> str:
    """What gloo says, without its source file in front and its advice behind."""
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return re.sub(r"^\[[^]]*\] ", "", line).partition(". ")[0]
