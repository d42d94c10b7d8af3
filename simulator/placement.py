"""Which SM takes which CTA: SMs of one rank, grouped by what they hold.

An SM takes CTAs while threads, registers, shared memory and slots suffice. SMs with the same
residents are one group, so that placing 132 CTAs costs a step per group and not per SM. The first CTA
on an idle SM decides how much shared memory it has until it is idle again.
"""

from __future__ import annotations

from models.machine import Footprint, SmResources

Residents = tuple[
    tuple[int, int], ...
]  # (allocation, CTAs of it on each SM of the group), ascending
State = tuple[int, Residents]  # shared memory that the SM is configured for, in bytes; residents
Free = tuple[int, int, int, int]  # threads, registers, shared memory bytes, CTA slots
_IDLE: State = (0, ())


class _Group:
    """SMs with the same residents: how many they are, and what each has free."""

    __slots__ = ("count", "free")

    def __init__(self, count: int, free: Free) -> None:
        self.count = count
        self.free = free

    def takes(self, need: Free) -> int:
        """CTAs that each SM of this group still takes."""
        threads, registers, smem, ctas = self.free
        if need[0] and threads // need[0] < ctas:
            ctas = threads // need[0]
        if need[1] and registers // need[1] < ctas:
            ctas = registers // need[1]
        if need[2] and smem // need[2] < ctas:
            ctas = smem // need[2]
        return ctas

    def give(self, need: Free, ctas: int) -> None:
        """Each SM gives so much to `ctas` CTAs, or takes it back from as many below 0."""
        threads, registers, smem, slots = self.free
        self.free = (
            threads - need[0] * ctas,
            registers - need[1] * ctas,
            smem - need[2] * ctas,
            slots - ctas,
        )


def _need(cta: Footprint) -> Free:
    return cta.threads, cta.registers, cta.smem_bytes, 1


class Room:
    """The SMs of one rank. An allocation is some CTAs placed at once; it has a number, ever larger."""

    __slots__ = ("_free", "_groups", "_needs", "_sizes", "_sm", "num_sms")

    def __init__(self, num_sms: int, sm: SmResources) -> None:
        self.num_sms = num_sms
        self._sm = sm
        self._free = (sm.threads, sm.registers, sm.smem_bytes, sm.cta_slots)
        self._groups: dict[State, _Group] = {_IDLE: _Group(num_sms, self._free)}
        self._needs: dict[int, Free] = {}
        self._sizes: dict[Free, int] = {}

    @property
    def resident_sms(self) -> int:
        """SMs with at least one CTA."""
        idle = self._groups.get(_IDLE)
        return self.num_sms - (idle.count if idle else 0)

    def fits(self, cta: Footprint, at_most: int) -> int:
        """CTAs of this footprint that fit now, `at_most` at most."""
        need = _need(cta)
        total = 0
        for group in self._groups.values():
            total += group.count * group.takes(need)
            if total >= at_most:
                return at_most
        return total

    def take(self, allocation: int, cta: Footprint, ctas: int, *, packed: bool = False) -> int:
        """Place `ctas` CTAs, which must fit, each on the emptiest SM; returns how many SMs hold them.
        `packed` fills one SM before the next, as in a partition of few SMs."""
        need = self._needs[allocation] = _need(cta)
        if packed:
            return self._pack(allocation, need, ctas)
        takers = [state for state, group in self._groups.items() if group.takes(need)]
        if len(takers) > 1:
            return self._fill(allocation, need, ctas)
        count = self._groups[takers[0]].count
        rounds, extra = divmod(ctas, count)
        if rounds:
            self._shift(takers[0], count - extra, allocation, rounds)
        if extra:
            self._shift(takers[0], extra, allocation, rounds + 1)
        return count if rounds else extra

    def _fill(self, allocation: int, need: Free, ctas: int) -> int:
        """`take` where SMs differ: one more CTA for all SMs of the emptiest group, again and again."""
        sms = 0
        while ctas:
            state, group = self._emptiest(need)
            _, residents = state
            moved = min(ctas, group.count)
            if not residents or residents[-1][0] != allocation:
                sms += moved
            self._shift(state, moved, allocation, 1)
            ctas -= moved
        return sms

    def _pack(self, allocation: int, need: Free, ctas: int) -> int:
        """`take` that fills the emptiest SMs to the brim."""
        sms = 0
        while ctas:
            state, group = self._emptiest(need)
            each = min(ctas, group.takes(need))
            filled = min(group.count, ctas // each)
            self._shift(state, filled, allocation, each)
            sms += filled
            ctas -= filled * each
        return sms

    def _emptiest(self, need: Free) -> tuple[State, _Group]:
        """The group with most free among those that take a CTA."""
        takers = (item for item in self._groups.items() if item[1].takes(need))
        return max(takers, key=lambda item: item[1].free)

    def release(self, allocation: int) -> None:
        """Free the SMs of an allocation."""
        need = self._needs.pop(allocation)
        for state in tuple(self._groups):
            smem_bytes, residents = state
            for index, (resident, ctas) in enumerate(residents):
                if resident == allocation:
                    group = self._groups.pop(state)
                    group.give(need, -ctas)
                    left = residents[:index] + residents[index + 1 :]
                    if left:
                        self._put((smem_bytes, left), group)
                    else:
                        self._put(_IDLE, _Group(group.count, self._free))
                    break

    def _configured(self, need: Free) -> tuple[int, Free]:
        """Shared memory and free resources of an idle SM about to take CTAs that need so much."""
        size = self._sizes.get(need)
        if size is None:
            threads, registers, smem, _ = need
            size = self._sizes[need] = self._sm.carveout(Footprint(1, threads, registers, smem))
        return size, (self._free[0], self._free[1], size, self._free[3])

    def _shift(self, state: State, sms: int, allocation: int, ctas: int) -> None:
        """`sms` SMs of a group take `ctas` more CTAs each."""
        group = self._groups[state]
        smem_bytes, residents = state
        if sms == group.count:
            del self._groups[state]
        else:
            group.count -= sms
            group = _Group(sms, group.free)
        if not residents:
            smem_bytes, group.free = self._configured(self._needs[allocation])
        group.give(self._needs[allocation], ctas)
        more = ctas
        if residents and residents[-1][0] == allocation:
            more += residents[-1][1]
            residents = residents[:-1]
        self._put((smem_bytes, (*residents, (allocation, more))), group)

    def _put(self, state: State, group: _Group) -> None:
        """Add SMs to those in the same state."""
        alike = self._groups.get(state)
        if alike is None:
            self._groups[state] = group
        else:
            alike.count += group.count
