"""The sentences of `explain`: every number in them is a number of its document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from viz.figures import gflop, micro, signed_percent

Part = Mapping[str, Any]


def paths_words(paths: Part) -> str:
    """Two or three sentences about figure 1."""
    one, two = paths["unfused"], paths["fused"]
    start = (
        f"On rank {paths['rank']}, which receives most, the MoE block is {one['launches']} kernels, "
        f"{micro(one['us'])} one after the other and alone on the GPU, reading and writing "
        f"{_gib(one['hbm_bytes'])}. "
    )
    if two is None:
        return start + f"Nothing can be fused here: {paths['reason']}."
    less = "less" if two["us"] < one["us"] else "more"
    return (
        f"{start}Fused, it is {two['launches']}: the shared expert becomes row {two['rows']} of the grouped "
        f"GEMM and slot {two['top_k']} of every token, which takes {micro(two['us'])}, "
        f"{micro(abs(two['us'] - one['us']))} {less}, with the same {gflop(one['flops'])} GFLOP."
        if two["flops"] == one["flops"]
        else f"{start}Fused, it is {two['launches']} kernels and {micro(two['us'])}, "
        f"{micro(abs(two['us'] - one['us']))} {less}; the work goes from {gflop(one['flops'])} to "
        f"{gflop(two['flops'])} GFLOP."
    )


def slots_words(slots: Part) -> str:
    """Two or three sentences about figure 2."""
    if not slots["shared"]:
        return (
            f"{_holding(slots)}. The "
            "model has no shared expert, so there is nothing to fuse and both layouts are the same."
        )
    other = "global" if slots["layout"] == "per_rank" else "per_rank"
    names = {"global": "global", "per_rank": "per-rank"}
    return (
        f"{_holding(slots)} and, when "
        f"fused, one shared row. This all-to-all uses the {names[slots['layout']]} layout with "
        f"{slots['total_ids'][slots['layout']]} ids; the {names[other]} one would have "
        f"{slots['total_ids'][other]}. The shared slot's weight is "
        f"{slots['shared_weight'][slots['layout']]:.4g}, so that the final scaling leaves it at 1."
    )


def _holding(slots: Part) -> str:
    ranks, experts = slots["ep_size"], slots["experts_per_rank"]
    who = "The one rank" if ranks == 1 else f"Each of the {ranks} ranks"
    return f"{who} holds {experts} routed expert{'' if experts == 1 else 's'}"


def control_words(control: Part) -> str:
    """Two sentences about figure 3."""
    here = control["here"]
    turning = ", ".join(entry["change"] for entry in control["changes"])
    end = (
        f" One change alone would turn this: {turning}."
        if turning
        else " No single change turns this."
    )
    return (
        f"With SGLang {control['version']} and this scenario's flags the shared expert is "
        f"{here['outcome']}, by rule {here['rule']} ({here['evidence']}).{end}"
    )


def gains_words(gains: Part) -> str:
    """Two sentences about figure 4."""
    rows = {row["name"]: row for row in gains["rows"] if row["layer_us"] is not None}
    base = rows.get("baseline")
    if base is None:
        return "The baseline itself cannot be predicted here, so there is nothing to compare with."
    others = [row for name, row in rows.items() if name != "baseline"]
    parts = [
        f"{row['name']} {signed_percent(base['layer_us'] / row['layer_us'])}"
        for row in sorted(others, key=lambda row: float(row["layer_us"]))[:3]
    ]
    load = gains["load"]
    words = f"A layer takes {micro(base['layer_us'])} under the baseline; the fastest others change its speed by {', '.join(parts)}."
    if load["waterfill"] is None:
        return words + (
            f" Waterfill cannot run here ({load['refused']})." if load["refused"] else ""
        )
    return words + (
        f" Waterfill takes the busiest rank from {max(load['home']):,} to {max(load['waterfill']):,} copies."
    )


def overlap_words(schedules: list[Part], missing: Mapping[str, str]) -> str:
    """Two sentences about figure 5, and one for each schedule that cannot be shown."""
    parts = []
    for one in schedules:
        exposed = one["exposed_comm_us"]
        parts.append(
            f"{one['name']} takes {micro(one['layer_us'])} a layer, {micro(exposed)} of it exposed"
        )
    return (
        f"In steady state {'; '.join(parts)}. SBO keeps one batch and places kernels beside each other by "
        "SM budget and events; TBO has two children that take turns at yields."
        + "".join(f" {name} cannot run here: {reason}." for name, reason in missing.items())
    )


def checkpoint_words(fit: Part) -> str:
    """Two sentences about figure 6."""
    kinds = ", ".join(dict.fromkeys(entry["verdict"] for entry in fit["layers"]))
    return (
        f"{fit['folder']} stores {fit['tensors']:,} tensors as {fit['format']}; when fused, its shared expert "
        f"takes the id {fit['slot']} behind the routed ones. With fusion enforced its layers: {kinds}. "
        f"Without, the server leaves it {fit['default']['outcome']} ({fit['default']['rule']})."
    )


def _gib(nbytes: float) -> str:
    return f"{nbytes / 2**20:,.1f} MiB" if nbytes < 2**30 else f"{nbytes / 2**30:,.2f} GiB"
