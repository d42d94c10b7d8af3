// A timeline's columns, indexed for drawing: rows of spans by rank and lane, windows of layers, and
// who waited for whom. Times are integer nanoseconds throughout; only drawing turns them into us or ms.

const CAUSES = ["queued", "dependency", "sm_wait", "link_wait", "peer_wait", "host"];

function embedded(id) {
  const node = document.getElementById(id);
  return node ? JSON.parse(node.textContent) : null;
}

function offsets(counts) {
  const out = new Int32Array(counts.length + 1);
  for (let i = 0; i < counts.length; i++) out[i + 1] = out[i] + counts[i];
  return out;
}

// What is known of a timeline before its columns are parsed.
class Summary {
  constructor(summary) {
    this.layers = new Map(summary.layers.map(([layer, start, end]) => [layer, { start, end }]));
    this.steady = summary.steady;
    this.makespan = summary.makespan;
    this.ranks = summary.ranks;
    this.families = summary.families;
    this.split = summary.split;
    this.has = new Set(summary.has);
  }

  // From the start of a layer to the start of the next one.
  period(layer) {
    const here = this.layers.get(layer);
    const next = this.layers.get(layer + 1);
    return here && next ? next.start - here.start : null;
  }
}

class TimelineData extends Summary {
  constructor(index, summary) {
    super(summary);
    const columns = embedded(`timeline-${index}`);
    this.index = index;
    this.c = columns;
    this.size = columns.op.length;
    this.waitAt = offsets(columns.waits);
    this.stallAt = offsets(columns.stalls);
    this.critical = new Uint8Array(this.size);
    for (const i of columns.critical) this.critical[i] = 1;
    this.rowsBuilt = new Map();
    this.countersRead = new Map();
    this.matched = null;
  }

  opName(i) { return this.c.ops[this.c.op[i]]; }

  // Rows of one rank by lane, built when first shown: a lane whose spans overlap (flights may) takes more
  // than one row.
  rowsOfRank(rank) {
    if (!this.rowsBuilt.has(rank)) this.rowsBuilt.set(rank, this.buildRows(rank));
    return this.rowsBuilt.get(rank);
  }

  buildRows(rank) {
    const { start } = this.c;
    const order = [];
    this.c.rank.forEach((r, i) => { if (r === rank) order.push(i); });
    order.sort((a, b) => start[a] - start[b] || a - b);
    const lanes = new Map();
    for (const i of order) {
      const lane = this.c.lane[i];
      if (!lanes.has(lane)) lanes.set(lane, []);
      const rows = lanes.get(lane);
      let row = rows.find((r) => this.follows(r[r.length - 1], i));
      if (!row) { row = []; rows.push(row); }
      row.push(i);
    }
    return lanes;
  }

  // Whether span b can stand behind a in one row. Measured spans of one stream overlap by a little, since
  // stamps are coarse and kernels may start before their predecessor's last block ends.
  follows(a, b) {
    const { start, end } = this.c;
    const overlap = end[a] - start[b];
    return overlap <= 0 || (end[b] >= end[a] && overlap <= Math.min(2000, 0.2 * (end[b] - start[b])));
  }

  laneRank(name) { return name === "main" ? 0 : name === "flight" ? 2 : 1; }

  rowsOf(ranks) {
    const out = [];
    for (const rank of ranks) {
      const lanes = [...this.rowsOfRank(rank)].map(([lane, rows]) => [this.c.lanes[lane], rows]);
      lanes.sort((a, b) => this.laneRank(a[0]) - this.laneRank(b[0]) || a[0].localeCompare(b[0], "en", { numeric: true }));
      for (const [lane, rows] of lanes) {
        rows.forEach((spans, sub) => out.push({ rank, lane, sub, spans, first: false }));
      }
    }
    out.forEach((row, i) => { row.first = i === 0 || out[i - 1].rank !== row.rank; });
    return out;
  }

  // A rank's counters stand by themselves, since those of one rank only are drawn.
  countersOf(rank) {
    if (!this.countersRead.has(rank)) this.countersRead.set(rank, embedded(`counters-${this.index}-${rank}`) || []);
    return this.countersRead.get(rank);
  }

  waitsOf(i) { return this.entries(i, this.waitAt, "wait"); }

  stallsOf(i) { return this.entries(i, this.stallAt, "stall"); }

  entries(i, at, prefix) {
    const c = this.c;
    const out = [];
    for (let k = at[i]; k < at[i + 1]; k++) {
      const op = c[prefix + "_op"][k];
      out.push({
        cause: CAUSES[c[prefix + "_cause"][k]],
        ns: c[prefix + "_ns"][k],
        op: op < 0 ? null : c.ops[op],
        span: op < 0 ? -1 : this.find(c[prefix + "_rank"][k] < 0 ? c.rank[i] : c[prefix + "_rank"][k], op, i),
        rank: c[prefix + "_rank"][k],
      });
    }
    return out;
  }

  // The span of an op on a rank; of several (a flight has its send's name) the one that is not `self`.
  find(rank, op, self) {
    if (!this.byOp) {
      this.byOp = new Map();
      for (let i = 0; i < this.size; i++) {
        const key = this.c.rank[i] * this.c.ops.length + this.c.op[i];
        if (!this.byOp.has(key)) this.byOp.set(key, []);
        this.byOp.get(key).push(i);
      }
    }
    const found = this.byOp.get(rank * this.c.ops.length + op) || [];
    const other = found.filter((i) => i !== self);
    return other.length ? other[0] : -1;
  }

  // Spans that waited for span i, with how long and why.
  waitersOf(i) {
    if (!this.waiters) {
      this.waiters = new Map();
      for (let k = 0; k < this.size; k++) {
        for (const w of [...this.waitsOf(k), ...this.stallsOf(k)]) {
          if (w.span < 0) continue;
          if (!this.waiters.has(w.span)) this.waiters.set(w.span, []);
          this.waiters.get(w.span).push({ ...w, span: k, op: this.opName(k), rank: this.c.rank[k] });
        }
      }
    }
    return this.waiters.get(i) || [];
  }

  match(query) {
    const text = query.trim().toLowerCase();
    this.matched = text ? Uint8Array.from(this.c.ops, (name) => (name.toLowerCase().includes(text) ? 1 : 0)) : null;
  }

  matches(i) { return !this.matched || this.matched[this.c.op[i]] === 1; }
}

// Index of the first span of a row that ends after `ns`.
function firstEndingAfter(data, row, ns) {
  let low = 0;
  let high = row.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (data.c.end[row[mid]] <= ns) low = mid + 1;
    else high = mid;
  }
  return low;
}
