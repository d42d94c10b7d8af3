"""SMs as a plain list: the reference of grouped placement."""

from __future__ import annotations

from models.machine import Footprint, SmResources

Free = tuple[int, int, int, int]


class PlainRoom:
    """Every SM by itself: a CTA goes to the SM with most free, and the first one on an idle SM sets its
    shared memory."""

    def __init__(self, num_sms: int, sm: SmResources) -> None:
        self.sm = sm
        self.slots = sm.cta_slots
        self.free: list[Free] = [(sm.threads, sm.registers, sm.smem_bytes, sm.cta_slots)] * num_sms

    def best(self, need: Free) -> int | None:
        """The emptiest SM that takes a CTA."""
        able = [
            (free, -index)
            for index, free in enumerate(self.free)
            if all(have >= want for have, want in zip(free, need, strict=True))
        ]
        return -max(able)[1] if able else None

    def count(self, need: Free, at_most: int) -> int:
        """CTAs that fit, found by trying."""
        before = list(self.free)
        count = 0
        while count < at_most and (sm := self.best(need)) is not None:
            self.add(sm, need, -1)
            count += 1
        self.free = before
        return count

    def add(self, sm: int, need: Free, sign: int) -> None:
        """Take (-1) or give back (1) the resources of one CTA."""
        threads, registers, smem, slots = self.free[sm]
        if slots == self.slots:
            smem = self.sm.carveout(Footprint(1, need[0], need[1], need[2]))
        have = (threads, registers, smem, slots)
        a, b, c, d = (value + sign * want for value, want in zip(have, need, strict=True))
        self.free[sm] = (a, b, self.sm.smem_bytes if d == self.slots else c, d)

    @property
    def resident_sms(self) -> int:
        """SMs with at least one CTA."""
        return sum(free[3] < self.slots for free in self.free)
