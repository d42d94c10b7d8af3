"""Figures 1 to 4 of `explain` as HTML, from its document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from viz.figures import gflop, micro, signed_percent
from viz.flow import flow_svg

Part = Mapping[str, Any]
_SLOTS_SHOWN = 9
_LAYOUTS = {"global": "global layout", "per_rank": "per-rank layout", "none": "no fused slot"}


def paths_html(paths: Part) -> str:
    """Figure 1: both forms to one scale, and their totals."""
    sides = {"unfused": paths["unfused"]} | ({"fused": paths["fused"]} if paths["fused"] else {})
    longest = max(sum(k["us"] for k in [*one["routed"], *one["join"]]) for one in sides.values())
    drawings = "".join(
        flow_svg(
            [(name, [*one["routed"], *one["join"]]), ("shared expert", one["shared"])][
                : 1 + bool(one["shared"])
            ],
            longest,
        )
        for name, one in sides.items()
    )
    rows = "".join(
        f'<tr data-schedule="{name}"><th scope="row">{name}</th>'
        + _number("launches", one["launches"], f"{one['launches']}")
        + _number("us", one["us"], micro(one["us"]))
        + _number("hbm_bytes", one["hbm_bytes"], f"{one['hbm_bytes'] / 2**20:,.1f}")
        + _number("flops", one["flops"], gflop(one["flops"]))
        + _number("rows", one["rows"], f"{one['rows']}")
        + _number("top_k", one["top_k"], f"{one['top_k']}")
        + "</tr>"
        for name, one in sides.items()
    )
    head = (
        "",
        "kernels",
        "one after the other",
        "HBM, MiB",
        "GFLOP",
        "grouped GEMM rows",
        "slots per token",
    )
    return f'<div class="card">{drawings}</div>{table("paths", head, rows)}'


def slots_html(slots: Part) -> str:
    """Figure 2: rows by rank, with the ids of the layout in use, and the token picker."""
    routed = slots["experts_per_rank"]
    shown = _shown(routed + slots["shared"])
    head = ["rank", *("…" if k is None else f"row {k}" if k < routed else "shared" for k in shown)]
    body = "".join(_rank_html(rank, shown, routed, slots["layout"]) for rank in slots["ranks"])
    if slots["ep_size"] > len(slots["ranks"]):
        body += f'<tr><th scope="row" class="refused">{slots["ep_size"]} ranks in all</th></tr>'
    picker = (
        '<p><label>Pick a token <select id="token-picker" aria-label="Token"></select></label> '
        '<span class="hint">w: the router\'s own weight; outlined cells above hold its ids</span></p>'
        '<table id="token" class="slots"><tbody></tbody></table>'
    )
    legend = f'<p class="hint">expert, and below it its id in the {_LAYOUTS[slots["layout"]]}</p>'
    return f'{legend}{table("slots", head, body, "slots")}<div class="card table">{picker}</div>'


def _shown(columns: int) -> list[int | None]:
    if columns <= _SLOTS_SHOWN:
        return list(range(columns))
    return [*range(_SLOTS_SHOWN - 4), None, columns - 2, columns - 1]


def _rank_html(rank: Part, shown: list[int | None], routed: int, layout: str) -> str:
    cells = []
    for k in shown:
        if k is None:
            cells.append("<td>…</td>")
            continue
        expert = "shared" if k == routed else str(rank["experts"][k])
        id_ = rank["ids"][layout][k]
        kind = ' class="shared"' if k == routed else ""
        cells.append(f'<td{kind} data-id="{id_}">{expert}<br><small>{id_}</small></td>')
    return f'<tr><th scope="row">rank {rank["rank"]}</th>{"".join(cells)}</tr>'


def control_html(control: Part, shared: bool) -> str:
    """Figure 3: three cards, decisions by flag and version, what would change them. `shared` is whether
    the model has a shared expert at all."""
    here = control["here"]
    steps = "".join(
        f"<br>{escape(step['rule'])}: {escape(step['reason'])}" for step in here["steps"]
    )
    cards = (
        card("Switch: is it fused?", here["outcome"], f"{here['rule']}: {here['reason']}", steps),
        card(
            "Layout: which slot?",
            _LAYOUTS[here["layout"]],
            "follows from the all-to-all backend",
            "",
        ),
        card(
            "Scheduling: what is left to overlap?",
            "by schedule",
            *_hooks(control, here["outcome"] == "fused", shared),
        ),
    )
    rows = "".join(
        f'<tr><th scope="row">{escape(f["flag"])}</th><td class="text">{escape(f["version"])}</td>'
        f'<td class="text">{escape(f["outcome"])}</td><td class="text">{escape(f["rule"])}</td>'
        f'<td class="text">{escape(f["reason"])}</td></tr>'
        for f in control["flags"]
    )
    changes = "".join(
        f"<li>{escape(c['change'])}: {escape(c['outcome'])} ({escape(c['rule'])}; {escape(c['reason'])})</li>"
        for c in control["changes"]
    )
    turning = (
        f'<div class="card"><h3>What would change it</h3><ul>{changes}</ul></div>'
        if changes
        else ""
    )
    head = ("flag", "SGLang", "outcome", "rule", "reason")
    return (
        f'<div class="cards">{"".join(cards)}</div>{turning}{table("flags", head, rows, "words")}'
    )


def card(title: str, state: str, reason: str, more: str = "") -> str:
    """A card with a title, a state in large letters and its reason; `more` is HTML."""
    return (
        f'<div class="card"><h3>{escape(title)}</h3><div class="state">{escape(state)}</div>'
        f"<p>{escape(reason)}{more}</p></div>"
    )


def _hooks(control: Part, fused: bool, shared: bool) -> tuple[str, str]:
    if not shared:
        return "the model has no shared expert that could hide an exchange", ""
    side = "fused" if fused else "unfused"
    items = "".join(
        f"<br><b>{escape(hook['schedule'])}</b>: {escape(hook[side])}"
        for hook in control["scheduling"]
    )
    return f"with the shared expert {side}:", items


def gains_html(gains: Part) -> str:
    """Figure 4: layer times by order and kernels, each against the plain baseline; refusals below."""
    rows = {(row["order"], row["kernels"]): row for row in gains["rows"]}
    orders = list(dict.fromkeys(order for order, _ in rows))
    kernels = list(dict.fromkeys(kind for _, kind in rows))
    base = next(iter(rows.values()))["layer_us"]
    best = min(
        (r["layer_us"] for r in rows.values() if r["layer_us"] and not r["refused"]), default=None
    )
    body = "".join(
        f'<tr><th scope="row">{escape(order)}</th>'
        + "".join(_gain_html(rows[order, kind], base, best) for kind in kernels)
        + "</tr>"
        for order in orders
    )
    notes = _refusals(gains["rows"])
    changes = (
        '<p class="hint">Fusion changes kernels and layout. Waterfill changes which rank computes the shared '
        "slot. SBO and TBO change the order. † refused by the rules, predicted all the same.</p>"
    )
    return f"{changes}{table('gains', ('order', *kernels), body)}{notes}"


def _gain_html(row: Part, base: float | None, best: float | None) -> str:
    if row["layer_us"] is None:
        return '<td class="refused">cannot run</td>'
    ratio = (
        f" ({signed_percent(base / row['layer_us'])})" if base and row["layer_us"] != base else ""
    )
    mark = " †" if row["refused"] else ""
    win = ' class="win"' if row["layer_us"] == best and not row["refused"] else ""
    return (
        f'<td{win} data-schedule="{escape(row["name"])}" data-key="layer_us" '
        f'data-value="{row["layer_us"]!r}">{micro(row["layer_us"])}{ratio}{mark}</td>'
    )


def _refusals(rows: Iterable[Part]) -> str:
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["refused"]:
            reasons.setdefault(row["refused"]["reason"], []).append(row["name"])
    items = "".join(
        f"<li>{escape(', '.join(names))}: {escape(why)}</li>" for why, names in reasons.items()
    )
    return f'<ul class="hint">{items}</ul>' if items else ""


def table(name: str, head: Iterable[str], rows: str, kind: str = "") -> str:
    """A card with a table; `rows` is HTML, the head plain text."""
    cells = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    return (
        f'<div class="table card"><table id="{name}" class="{kind}"><thead><tr>{cells}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _number(key: str, value: float, text: str) -> str:
    return f'<td data-key="{key}" data-value="{value!r}">{escape(text)}</td>'
