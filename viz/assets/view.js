// What is shown: which ranks, which layer, which window, which theme. One state for all timelines, so
// that a zoom of one is a zoom of all.

function micro(ns) {
  const us = ns / 1000;
  if (us >= 10000) return `${(us / 1000).toLocaleString("en", { maximumFractionDigits: 2 })} ms`;
  return `${us.toLocaleString("en", { maximumFractionDigits: us < 100 ? 2 : 1 })} µs`;
}

class Section {
  constructor(view, node, summary) {
    Object.assign(this, { view, node, name: node.dataset.timeline, summary: new Summary(summary) });
    this.raw = summary;
    this.plot = node.querySelector(".plot");
    this.drawn = 0;
    this.near = false;
    this.stale = true;
    this.widthPx = 100;
  }

  get data() {
    if (!this.loaded) {
      this.loaded = new TimelineData(Number(this.node.dataset.index), this.raw);
      this.loaded.match(this.view.query);
    }
    return this.loaded;
  }

  // Rows of the ranks shown, and for every span the row it is in (-1: not shown).
  get rows() {
    const ranks = this.view.ranksOf(this.summary);
    if (!this.cached || this.cached.key !== ranks.join()) {
      const rows = this.data.rowsOf(ranks);
      const rowOf = new Int32Array(this.data.size).fill(-1);
      rows.forEach((row, y) => { for (const i of row.spans) rowOf[i] = y; });
      this.cached = { key: ranks.join(), rows, rowOf };
    }
    return this.cached.rows;
  }

  get offset() { return this.view.offset(this.summary); }

  measure() {
    const { top, bottom, width } = this.plot.getBoundingClientRect();
    this.widthPx = Math.max(100, Math.floor(width) - MARGIN.l - MARGIN.r);
    this.inView = bottom > 0 && top < innerHeight;
  }

  draw() {
    this.stale = false;
    const { from, to } = this.view.window;
    this.shownRows = this.rows;
    const figure = new Figure(this.view, this.data, this.shownRows, this.cached.rowOf);
    const marks = this.view.marksOf(this);
    const { traces, layout } = figure.build(this.offset, from, to, this.widthPx, marks);
    const config = { displayModeBar: false, doubleClick: false, scrollZoom: false, responsive: false };
    this.plot.style.height = `${layout.height}px`;
    Plotly.react(this.plot, traces, { ...layout, width: this.widthPx + MARGIN.l + MARGIN.r }, config);
    if (!this.drawn++) this.listen();
    this.plot.dataset.drawn = String(this.drawn);
  }

  listen() {
    this.plot.on("plotly_relayout", (change) => {
      const [low, high] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (low === undefined || high === undefined) return;
      const unit = this.view.unit().ns;
      this.view.zoomTo(low * unit, high * unit);
    });
    this.plot.on("plotly_doubleclick", () => this.view.resetZoom());
    listenPointer(this);
  }

  // The span under a point of the page, or -1; the plot area is exactly inside the margins.
  spanAt(clientX, clientY) {
    const at = this.place(clientX, clientY);
    const row = at && this.shownRows[Math.floor(at.y)];
    if (!row) return -1;
    const { from, to } = this.view.window;
    const slack = (2 * (to - from)) / this.widthPx;
    let best = -1;
    let distance = slack;
    for (let k = firstEndingAfter(this.data, row.spans, at.ns - slack); k < row.spans.length; k++) {
      const i = row.spans[k];
      const away = Math.max(this.data.c.start[i] - at.ns, at.ns - this.data.c.end[i], 0);
      if (this.data.c.start[i] - at.ns > slack) break;
      if (away < distance) { best = i; distance = away; }
      if (away === 0) break;
    }
    return best;
  }

  place(clientX, clientY) {
    const rect = this.plot.getBoundingClientRect();
    const x = (clientX - rect.left - MARGIN.l) / this.widthPx;
    const y = (clientY - rect.top - MARGIN.t) / ROW_PX;
    if (x < 0 || x > 1 || y < 0 || y >= this.shownRows.length) return null;
    const { from, to } = this.view.window;
    return { x, y, ns: from + x * (to - from) + this.offset };
  }
}

class View {
  constructor() {
    this.families = embedded("families");
    this.theme = document.documentElement.dataset.theme;
    this.query = "";
    this.counters = true;
    this.critical = true;
    this.exposed = true;
    this.selected = null;
    this.chartWatch = {};
    const summaries = embedded("summaries");
    const nodes = [...document.querySelectorAll("section[data-timeline]")];
    this.sections = nodes.map((node) => new Section(this, node, summaries[Number(node.dataset.index)]));
    this.chosenRanks = null;
    const layers = this.sections.length ? [...this.sections[0].summary.layers.keys()].sort((a, b) => a - b) : [];
    this.layers = layers;
    this.layer = layers.length ? this.sections[0].summary.steady : null;
    this.resetWindow();
  }

  unit() { return this.window && this.window.to - this.window.from > 5e6 ? { ns: 1e6, name: "ms" } : { ns: 1e3, name: "µs" }; }

  offset(data) {
    const window = this.layer === null ? null : data.layers.get(this.layer);
    return window ? window.start : 0;
  }

  layerMarks(data) {
    const period = this.layer === null ? null : data.period(this.layer);
    const here = this.layer === null ? null : data.layers.get(this.layer);
    return period === null || !here ? [] : [here.start, here.start + period];
  }

  ranksOf(data) {
    const chosen = this.chosenRanks && data.ranks.filter((r) => this.chosenRanks.includes(r));
    return chosen && chosen.length ? chosen : data.ranks.slice(0, 2);
  }

  counterRank(data) { return this.ranksOf(data)[0]; }

  resetWindow() {
    const windows = this.sections.map(({ summary }) => summary.layers.get(this.layer)).filter(Boolean);
    const lengths = windows.length ? windows.map((w) => w.end - w.start) : this.sections.map(({ summary }) => summary.makespan);
    const length = Math.max(0, ...lengths);
    this.window = { from: -0.02 * length, to: 1.04 * length || 1 };
    this.home = { ...this.window };
  }

  zoomTo(from, to) {
    const least = 50;
    if (to - from < least) { const mid = (from + to) / 2; from = mid - least / 2; to = mid + least / 2; }
    this.window = { from, to };
    this.draw();
  }

  zoomBy(factor, centre) {
    const { from, to } = this.window;
    const at = centre === undefined ? (from + to) / 2 : centre;
    this.zoomTo(at - (at - from) * factor, at + (to - at) * factor);
  }

  pan(share) {
    const step = (this.window.to - this.window.from) * share;
    this.zoomTo(this.window.from + step, this.window.to + step);
  }

  resetZoom() { this.window = { ...this.home }; this.draw(); }

  showLayer(layer) {
    this.layer = layer;
    this.resetWindow();
    this.draw();
  }

  select(section, i) {
    this.selected = i < 0 || !section ? null : { section, i };
    this.draw();
    showDock(this);
  }

  // Select and bring into view: another rank is added, another time is panned to.
  reveal(section, i) {
    const { c } = section.data;
    const ranks = this.ranksOf(section.data);
    if (!ranks.includes(c.rank[i])) this.chosenRanks = [...ranks, c.rank[i]];
    const [start, end] = [c.start[i] - section.offset, c.end[i] - section.offset];
    const { from, to } = this.window;
    if (start < from || end > to) {
      const half = Math.max((to - from) / 2, (end - start) * 0.6);
      this.window = { from: (start + end) / 2 - half, to: (start + end) / 2 + half };
    }
    section.node.scrollIntoView({ block: "nearest" });
    this.select(section, i);
  }

  marksOf(section) {
    if (!this.selected || this.selected.section !== section) return null;
    const { i } = this.selected;
    const { data } = section;
    const causes = [...data.waitsOf(i), ...data.stallsOf(i)].map((w) => w.span).filter((k) => k >= 0);
    return { self: [i], causes: [...new Set(causes)], waiters: [...new Set(data.waitersOf(i).map((w) => w.span))] };
  }

  // Draws what is on the screen now, and what is near it once that is painted.
  draw() {
    const began = performance.now();
    for (const section of this.sections) section.measure();
    for (const section of this.sections) {
      section.stale = true;
      if (section.inView) section.draw();
    }
    document.body.dataset.drawMs = (performance.now() - began).toFixed(1);
    this.drawNearSoon();
  }

  drawNearSoon() {
    clearTimeout(this.later);
    this.later = setTimeout(() => this.drawNear(), 60);
  }

  drawAll() {
    for (const section of this.sections) { section.near = true; section.measure(); section.draw(); }
    drawAllCharts(this);
  }

  drawNear() {
    const next = this.sections.find((s) => s.near && s.stale);
    if (!next) return;
    next.draw();
    this.later = setTimeout(() => this.drawNear(), 0);
  }
}
