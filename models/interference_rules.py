"""The slowdowns of a machine from the `interference` section of its profile."""

from __future__ import annotations

from models.machine import Interference, SizeLaw
from models.profile_schema import InterferenceSection


def interference_of(near: InterferenceSection) -> Interference:
    """The section's coefficients as the engine reads them, in the order of their names."""
    return Interference(
        near.achievable_hbm_gbps,
        tuple((name, pair.c0, pair.c1) for name, pair in sorted(near.families.items())),
        (near.compute.c0, near.compute.c1),
        near.rho_cap,
        tuple((kind, pair.c0, pair.c1) for kind, pair in sorted(near.kinds.items())),
        tuple(
            (family, name, at.sms, at.c0, at.c1)
            for family, directions in sorted(near.exchanges.items())
            for name, pairs in sorted(directions.items())
            for at in sorted(pairs, key=lambda pair: pair.sms)
        ),
        tuple(sorted(near.errors.items())),
        by_size=tuple(
            (family, name, SizeLaw(**law.model_dump()))
            for family, directions in sorted(near.sizes.items())
            for name, law in sorted(directions.items())
        ),
    )
