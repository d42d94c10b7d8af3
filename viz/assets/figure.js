// One timeline as a Plotly figure of the visible window: one filled trace per family, child and
// emphasis, so that a redraw costs a handful of paths however many spans there are.

const ROW_PX = 22;
const COUNTER_PX = 58;
const MARGIN = { l: 118, r: 18, t: 22, b: 34 };
const COUNTER_GROUPS = [
  { title: "SMs", unit: "", names: [["sms_resident", "resident"], ["sms_spinning", "spinning"]] },
  { title: "HBM", unit: "GB/s", names: [["hbm_gbps", "HBM"]] },
  { title: "links", unit: "GB/s", names: [["nvlink_gbps", "NVLink"], ["nic_gbps", "NIC"]] },
];
const COUNTER_FAMILY = { sms_resident: "gemm", sms_spinning: "combine", hbm_gbps: "grouped", nvlink_gbps: "notify", nic_gbps: "attention" };

function css(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function mix(hex, other, share) {
  const parts = (h) => [1, 3, 5].map((k) => parseInt(h.slice(k, k + 2), 16));
  const [a, b] = [parts(hex), parts(other)];
  return "#" + a.map((v, k) => Math.round(v + (b[k] - v) * share).toString(16).padStart(2, "0")).join("");
}

// Relative luminance as WCAG 2 defines it; at 0.2 white and the page's ink read equally well.
function luminance(hex) {
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = [1, 3, 5].map((k) => linear(parseInt(hex.slice(k, k + 2), 16) / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function familyColour(family, child, dark) {
  const base = dark ? family.dark : family.light;
  return child === 2 ? mix(base, dark ? "#11161d" : "#ffffff", 0.42) : base;
}

// Spans of one row inside [from, to]; those narrower than a pixel share it, the longest one shows.
function visibleSpans(data, row, from, to, nsPerPx) {
  const out = [];
  const { start, end } = data.c;
  let pixel = null;
  for (let k = firstEndingAfter(data, row, from); k < row.length && start[row[k]] < to; k++) {
    const i = row[k];
    if (end[i] - start[i] >= nsPerPx) { pixel = null; out.push({ i, from: start[i], to: end[i] }); continue; }
    if (pixel && start[i] < pixel.from + nsPerPx) {
      if (end[i] - start[i] > end[pixel.i] - start[pixel.i]) pixel.i = i;
      pixel.to = Math.max(pixel.to, end[i]);
      continue;
    }
    pixel = { i, from: start[i], to: Math.max(end[i], start[i] + nsPerPx) };
    out.push(pixel);
  }
  return out;
}

// Adds a box to a filled trace. The boxes of a row are one polygon, joined along the row's lower edge where
// nothing shows: Plotly makes an element of the page for each polygon, so there must be few.
function box(trace, x0, x1, y) {
  if (trace.row !== y && trace.x.length) { trace.x.push(null); trace.y.push(null); }
  trace.row = y;
  trace.x.push(x0, x0, x1, x1);
  trace.y.push(y + 0.92, y + 0.08, y + 0.08, y + 0.92);
}

// Many outlines or lines as one path: a shape of Plotly, in data coordinates.
class Path {
  constructor(colour, width, dash) {
    this.parts = [];
    const line = { color: colour, width, dash: dash || "solid" };
    this.style = { type: "path", xref: "x", yref: "y", layer: "above", fillcolor: "rgba(0,0,0,0)", line };
  }

  frame(x0, x1, y, inset) { this.parts.push(`M${x0},${y + inset}H${x1}V${y + 1 - inset}H${x0}Z`); }

  segment(x0, y0, x1, y1) { this.parts.push(`M${x0},${y0}L${x1},${y1}`); }

  get shapes() { return this.parts.length ? [{ ...this.style, path: this.parts.join("") }] : []; }
}

function shortName(data, i) {
  const parts = data.opName(i).split(".");
  const tail = parts.filter((p, k) => !(k === 0 && /^[LD]?\d+$/.test(p)) && !(k <= 1 && /^[ab]$/.test(p)));
  return (tail.length ? tail : parts).join(".");
}

class Figure {
  constructor(view, data, rows, rowOf) {
    Object.assign(this, { view, data, rows, rowOf });
    this.dark = view.theme === "dark";
    this.unit = view.unit();
  }

  x(ns) { return Math.round((1000 * (ns - this.offset)) / this.unit.ns) / 1000; }

  build(offset, from, to, widthPx, marks) {
    this.offset = offset;
    this.nsPerPx = (to - from) / Math.max(1, widthPx);
    this.range = [from / this.unit.ns, to / this.unit.ns];
    this.from = from + offset;
    this.to = to + offset;
    this.related = marks && new Set([...marks.self, ...marks.causes, ...marks.waiters]);
    const traces = [...this.spanTraces(), ...this.counterTraces()];
    return { traces, layout: this.layout(marks) };
  }

  spanTraces() {
    const fills = new Map();
    const labels = { dark: this.labelTrace("#14181d"), light: this.labelTrace("#ffffff") };
    this.critical = new Path(css("--ink"), 2);
    this.rows.forEach((row, y) => {
      for (const shown of visibleSpans(this.data, row.spans, this.from, this.to, this.nsPerPx)) {
        this.span(fills, labels, shown, y);
      }
    });
    return [...[...fills.entries()].sort((a, b) => (a[0] < b[0] ? -1 : 1)).map((e) => e[1]), labels.dark, labels.light];
  }

  span(fills, labels, { i, from, to }, y) {
    const c = this.data.c;
    const opacity = this.opacity(i);
    const key = `${c.family[i]}-${c.child[i] === 2 ? 2 : 1}-${opacity}`;
    if (!fills.has(key)) fills.set(key, this.fillTrace(c.family[i], c.child[i], opacity));
    const x0 = this.x(Math.max(from, this.from));
    const x1 = this.x(Math.min(to, this.to));
    const px = (Math.min(to, this.to) - Math.max(from, this.from)) / this.nsPerPx;
    box(fills.get(key), x0, px > 3 ? x1 - this.nsPerPx / this.unit.ns : x1, y);
    if (this.data.critical[i] && !(this.related && opacity < 1)) {
      if (px > 4) this.critical.frame(x0, x1, y, 0.06);
      else this.critical.segment(x0, y + 0.95, x1, y + 0.95);
    }
    const text = shortName(this.data, i);
    if (px < text.length * 6.7 + 6 || opacity < 0.3) return;
    const colour = familyColour(this.view.families[c.family[i]], c.child[i], this.dark);
    const trace = labels[luminance(colour) > 0.2 ? "dark" : "light"];
    trace.x.push((x0 + x1) / 2);
    trace.y.push(y + 0.5);
    trace.text.push(text);
  }

  // Spans that the search does not match fade, and those that have nothing to do with the selected one.
  opacity(i) {
    if (!this.data.matches(i)) return 0.14;
    return this.related && !this.related.has(i) ? 0.4 : 1;
  }

  fillTrace(familyIndex, child, opacity) {
    const family = this.view.families[familyIndex];
    const colour = familyColour(family, child, this.dark);
    const trace = {
      type: "scatter", mode: "none", x: [], y: [], hoverinfo: "skip", showlegend: false,
      fill: "toself", fillcolor: colour, opacity, name: family.title,
    };
    if (child === 2) {
      trace.fillpattern = { shape: "/", size: 6, solidity: 0.12, bgcolor: colour, fgcolor: mix(colour, "#000000", 0.55) };
    }
    return trace;
  }

  labelTrace(colour) {
    return { type: "scatter", mode: "text", x: [], y: [], text: [], hoverinfo: "skip", showlegend: false,
      textfont: { size: 11, color: colour, family: "system-ui, sans-serif" } };
  }

  // The selected span, what it waited for, and what waited for it.
  markShapes(marks) {
    if (!marks) return [];
    const parts = [["causes", css("--cause"), 2.5], ["waiters", css("--waiter"), 2.5], ["self", css("--select"), 3]];
    return parts.flatMap(([key, colour, width]) => {
      const boxes = new Path(colour, width);
      const links = new Path(colour, 1.2, "dot");
      for (const i of marks[key]) this.mark(boxes, links, i, key, marks.self[0]);
      return [...links.shapes, ...boxes.shapes];
    });
  }

  mark(boxes, links, i, key, self) {
    const y = this.rowOf[i];
    if (y < 0) return;
    const c = this.data.c;
    const edge = (ns) => this.x(Math.min(Math.max(ns, this.from), this.to));
    if (c.end[i] > this.from && c.start[i] < this.to) boxes.frame(edge(c.start[i]), edge(c.end[i]), y, 0.04);
    const ys = this.rowOf[self];
    if (key === "self" || ys < 0) return;
    if (key === "causes") links.segment(edge(c.end[i]), y + 0.5, edge(c.start[self]), ys + 0.5);
    else links.segment(edge(c.end[self]), ys + 0.5, edge(c.start[i]), y + 0.5);
  }

  counterGroups() {
    if (!this.view.counters) return [];
    const counters = this.data.countersOf(this.view.counterRank(this.data));
    const seriesOf = (names) =>
      names.map(([name, title]) => [counters.find((one) => one.name === name), title]).filter(([one]) => one);
    return COUNTER_GROUPS.map((group) => ({ ...group, series: seriesOf(group.names) }))
      .filter((group) => group.series.some(([one]) => one.v.some((value) => value > 0)));
  }

  counterTraces() {
    return this.counterGroups().flatMap((group, k) => group.series.map(([series, title]) => {
      const family = this.view.families.find((f) => f.name === COUNTER_FAMILY[series.name]);
      const colour = this.dark ? family.dark : family.light;
      return { type: "scatter", mode: "lines", name: title, yaxis: `y${k + 2}`, hoverinfo: "skip", showlegend: false,
        line: { color: colour, width: 1.4, shape: "hv", simplify: false }, fill: "tozeroy", fillcolor: colour + "38",
        ...this.steps(series) };
    }));
  }

  // The step function inside the window; more points than pixels become time-weighted means per pixel.
  steps({ t, v }) {
    let k = 0;
    for (let step = 1 << 20; step; step >>= 1) if (k + step < t.length && t[k + step] <= this.from) k += step;
    const x = [];
    const y = [];
    let last = k;
    while (last < t.length && t[last] < this.to) last++;
    if (last - k < 1500) {
      for (; k < last; k++) { x.push(this.x(Math.max(t[k], this.from))); y.push(v[k]); }
    } else {
      for (let at = this.from; at < this.to; at += this.nsPerPx) {
        let sum = 0;
        const stop = at + this.nsPerPx;
        for (let now = at; now < stop;) {
          const next = k + 1 < last ? Math.min(t[k + 1], stop) : stop;
          sum += v[k] * (next - now);
          now = next;
          if (k + 1 < last && t[k + 1] <= stop && now < stop) k++;
          else break;
        }
        while (k + 1 < last && t[k + 1] <= stop) k++;
        x.push(this.x(at));
        y.push(sum / this.nsPerPx);
      }
    }
    if (y.length) { x.push(this.x(this.to)); y.push(y[y.length - 1]); }
    return { x, y };
  }

  layout(marks) {
    const groups = this.counterGroups();
    const lanesPx = Math.max(1, this.rows.length) * ROW_PX;
    const inner = lanesPx + groups.length * COUNTER_PX;
    const ink = css("--ink");
    const grid = css("--grid");
    const muted = css("--muted");
    const axis = { fixedrange: true, zeroline: false, ticklabeloverflow: "allow", tickfont: { size: 11, color: muted }, automargin: false };
    const layout = {
      height: inner + MARGIN.t + MARGIN.b, margin: MARGIN, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: css("--plot"),
      font: { family: "system-ui, sans-serif", size: 12, color: ink }, showlegend: false, hovermode: false, dragmode: "zoom",
      xaxis: {
        range: this.range, gridcolor: grid, zeroline: false, tickfont: { size: 11, color: muted }, nticks: 12,
        ticklabeloverflow: "allow", ticksuffix: ` ${this.unit.name}`, showticksuffix: "all",
        anchor: "free", position: 0, separatethousands: true, exponentformat: "none",
      },
      yaxis: { ...axis, domain: [1 - lanesPx / inner, 1], range: [this.rows.length, 0], showgrid: false, tickmode: "array",
        tickvals: this.rows.map((_, y) => y + 0.5), ticktext: this.rows.map((r) => this.rowTitle(r)) },
      shapes: this.shapes(marks), annotations: this.annotations(groups, inner),
    };
    groups.forEach((group, k) => {
      const top = lanesPx + k * COUNTER_PX + 8;
      const peak = Math.max(...group.series.map(([s]) => s.v.reduce((a, b) => Math.max(a, b), 0)));
      const bottom = lanesPx + (k + 1) * COUNTER_PX;
      layout[`yaxis${k + 2}`] = {
        ...axis, domain: [1 - bottom / inner, 1 - top / inner], range: [0, peak * 1.06], gridcolor: grid,
        tickvals: [0, peak], ticktext: ["0", peak.toLocaleString("en", { maximumFractionDigits: 0 })],
      };
    });
    return layout;
  }

  rowTitle(row) {
    const lane = row.sub ? "" : row.lane;
    return row.first ? `<b>rank ${row.rank}</b>  ${lane}` : lane;
  }

  // What an explaining page adds: exposed communication behind the lanes, yields, events between lanes.
  overlays() {
    const { exposed = [], yields = [], events = [] } = this.data.c;
    const shade = new Path("rgba(0,0,0,0)", 0);
    Object.assign(shade.style, { layer: "below", fillcolor: css("--exposed") });
    const turns = new Path(css("--accent"), 2);
    const arrows = new Path(css("--ink"), 1.2, "dot");
    const rowsOf = (rank) => this.rows.map((r, y) => (r.rank === rank ? y : -1)).filter((y) => y >= 0);
    const inside = (a, b) => b > this.from && a < this.to;
    for (const [rank, a, b] of this.view.exposed ? exposed : []) {
      const ys = rowsOf(rank);
      if (!ys.length || !inside(a, b)) continue;
      const [x0, x1] = [this.x(Math.max(a, this.from)), this.x(Math.min(b, this.to))];
      shade.parts.push(`M${x0},${ys[0]}H${x1}V${ys[ys.length - 1] + 1}H${x0}Z`);
    }
    for (const [rank, ns] of yields) {
      const ys = rowsOf(rank);
      if (ys.length && inside(ns, ns)) turns.segment(this.x(ns), ys[0] - 0.1, this.x(ns), ys[0] + 1.1);
    }
    for (const i of events) {
      const y = this.rowOf[i];
      for (const w of y < 0 ? [] : this.data.waitsOf(i)) {
        const from = w.cause === "dependency" && w.span >= 0 ? this.rowOf[w.span] : -1;
        const [a, b] = from < 0 ? [0, 0] : [this.data.c.end[w.span], this.data.c.start[i]];
        if (from >= 0 && from !== y && inside(a, b)) arrows.segment(this.x(a), from + 0.5, this.x(b), y + 0.5);
      }
    }
    return [...shade.shapes, ...turns.shapes, ...arrows.shapes];
  }

  shapes(marks) {
    const out = [...this.overlays(), ...(this.view.critical ? this.critical.shapes : []), ...this.markShapes(marks)];
    this.rows.forEach((row, y) => {
      if (row.first && y) out.push(this.line({ x0: 0, x1: 1, xref: "paper", y0: y, y1: y }, "solid"));
    });
    for (const at of this.view.layerMarks(this.data)) {
      out.push(this.line({ x0: this.x(at), x1: this.x(at), y0: 0, y1: 1, yref: "paper" }, "dash"));
    }
    return out;
  }

  line(place, dash) {
    return { type: "line", layer: "above", line: { color: css("--rule"), width: 1, dash }, ...place };
  }

  annotations(groups, inner) {
    const font = { size: 11, color: css("--muted") };
    const text = { showarrow: false, font, xanchor: "right", yanchor: "middle", xref: "paper", yref: "paper" };
    const lanesPx = this.rows.length * ROW_PX;
    const rank = this.view.counterRank(this.data);
    const out = groups.map((g, k) => ({ ...text, x: 0, xshift: -34, y: 1 - (lanesPx + (k + 0.57) * COUNTER_PX) / inner,
      text: `${g.title}${k ? "" : `, rank ${rank}`}${g.unit ? `<br>${g.unit}` : ""}`, align: "right" }));
    const [first, next] = this.view.layerMarks(this.data);
    if (next !== undefined) {
      const middle = { xref: "x", x: this.x((first + next) / 2), xanchor: "center", y: 1, yanchor: "bottom" };
      out.push({ ...text, ...middle, font: { size: 11, color: css("--ink") },
        text: `← layer ${this.view.layer} to ${this.view.layer + 1}: ${micro(next - first)} →` });
    }
    return out;
  }
}
