"""What a launch puts on the SMs, from the profile's table of kernel kinds."""

from __future__ import annotations

from models.forms import tiles
from models.machine import Footprint
from models.profile_schema import KernelKind
from models.work import Grid, Work


def footprint_of(work: Work, grid: Grid, entry: KernelKind, sms: int) -> Footprint:
    """CTAs of the launch, its budget applied, and what one of them takes of an SM."""
    return Footprint(
        _ctas(work, grid, entry, sms), entry.threads, entry.registers, entry.smem_bytes
    )


def _ctas(work: Work, grid: Grid, entry: KernelKind, sms: int) -> int:
    sizes = dict(work.dims)
    budget = min(grid.enforced_budget or sms, sms)
    if entry.ctas == "sms":
        # A persistent grid has no CTA without a tile.
        return min(budget, tiles(work) or budget)
    if entry.ctas == "one":
        return 1
    if entry.ctas == "fixed":
        return min(budget, entry.count)
    if entry.ctas == "num_sms":
        return budget if grid.sm_budget else min(sizes.get("num_sms", budget), budget)
    if entry.ctas in ("experts", "experts_or_tokens"):
        experts = max(1, sizes["experts"])
        per_cta = -(-experts // budget)
        ctas = -(-experts // per_cta)
        if entry.ctas == "experts_or_tokens":
            # Tokens are summed whole by a CTA each, by as few to a CTA as the SMs allow.
            tokens = max(1, sizes["tokens"])
            ctas = max(ctas, -(-tokens // -(-tokens // budget)))
        return ctas
    if entry.ctas == "shares":
        programs = max(1, sizes["tokens"] * -(-sizes["heads"] // entry.per_cta))
        longest = sizes["pairs"] // max(1, sizes["tokens"])
        return programs * max(1, min(sms // programs, longest // entry.count))
    if entry.ctas == "tiles":
        count = tiles(work)
    elif entry.ctas == "rows":
        count = -(-sizes.get("rows", sizes.get("tokens", 1)) // entry.per_cta)
    else:
        count = -(-sizes.get("rows", 1) * sizes.get("columns", 1) // entry.per_cta)
    return max(1, count)
