// The bar above the timelines, and the start of the page.

function parseRanks(text) {
  const out = [];
  for (const part of text.split(",").map((p) => p.trim()).filter(Boolean)) {
    const [low, high] = part.split("-").map(Number);
    for (let r = low; r <= (high === undefined ? low : high) && out.length < 512; r++) out.push(r);
  }
  return out.every(Number.isInteger) ? out : [];
}

function setTheme(view, theme) {
  view.theme = theme;
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
  drawLegend(view);
  drawCharts(view);
  view.draw();
}

function drawLegend(view) {
  const legend = document.getElementById("legend");
  if (!legend) return;
  const used = new Set(view.sections.flatMap((s) => s.summary.families));
  const dark = view.theme === "dark";
  const entry = (className, title) => element("span", {}, element("i", { className }), title);
  const items = view.families.filter((_, k) => used.has(k)).map((family) => {
    const item = entry("", family.title);
    item.firstChild.style.background = familyColour(family, 1, dark);
    return item;
  });
  if (view.sections.some((s) => s.summary.split)) {
    items.push(entry("child-a", "child a"), entry("child-b", "child b"));
  }
  const marks = { critical: "critical path", exposed: "exposed communication", yields: "yield", events: "event" };
  for (const [key, title] of Object.entries(marks)) {
    if (view.sections.some((s) => s.summary.has.has(key))) items.push(entry(key, title));
  }
  legend.replaceChildren(...items);
}

function fillLayers(view) {
  const select = document.getElementById("layer");
  select.append(element("option", { value: "", textContent: "whole step" }));
  for (const layer of view.layers) select.append(element("option", { value: String(layer), textContent: `layer ${layer}` }));
  select.value = view.layer === null ? "" : String(view.layer);
  const change = (value) => { select.value = value; view.showLayer(value === "" ? null : Number(value)); };
  select.addEventListener("change", () => change(select.value));
  const step = (by) => {
    const k = view.layers.indexOf(view.layer) + by;
    if (k >= 0 && k < view.layers.length) change(String(view.layers[k]));
  };
  document.getElementById("layer-back").addEventListener("click", () => step(-1));
  document.getElementById("layer-next").addEventListener("click", () => step(1));
}

// Matches of the search, schedule by schedule and in time; Enter goes to the next, Shift+Enter back.
function listenSearch(view) {
  const input = document.getElementById("search");
  const count = document.getElementById("found");
  let hits = [];
  let at = -1;
  const find = () => {
    view.query = input.value;
    hits = [];
    at = -1;
    for (const section of view.sections) {
      section.data.match(view.query);
      if (!view.query.trim()) continue;
      const spans = section.rows.flatMap((row) => row.spans);
      hits.push(...spans.filter((i) => section.data.matches(i)).map((i) => [section, i]));
    }
    count.textContent = view.query.trim() ? `${hits.length} found` : "";
    view.draw();
  };
  input.addEventListener("input", find);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { input.value = ""; find(); }
    if (event.key !== "Enter" || !hits.length) return;
    if (at < 0) at = Math.max(0, hits.findIndex(([s, i]) => s.data.c.start[i] - s.offset >= view.window.from));
    else at = (at + (event.shiftKey ? hits.length - 1 : 1)) % hits.length;
    count.textContent = `${at + 1} of ${hits.length}`;
    view.reveal(...hits[at]);
  });
}

// Ranks as `parseRanks` reads them: neighbours as one range. A folded timeline has a few of all ranks.
function rangesOf(ranks) {
  const runs = [];
  for (const rank of ranks) {
    const run = runs[runs.length - 1];
    if (run && run[1] === rank - 1) run[1] = rank;
    else runs.push([rank, rank]);
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(", ");
}

function listenControls(view) {
  fillLayers(view);
  listenSearch(view);
  const ranks = document.getElementById("ranks");
  const all = [...new Set(view.sections.flatMap((s) => s.summary.ranks))].sort((a, b) => a - b);
  const shown = view.ranksOf(view.sections[0].summary);
  ranks.placeholder = shown.length === all.length ? rangesOf(all) : `${rangesOf(shown)} of ${rangesOf(all)}`;
  ranks.parentElement.hidden = all.length < 2;
  ranks.addEventListener("change", () => { view.chosenRanks = ranks.value.trim() === "all" ? all : parseRanks(ranks.value); view.draw(); });
  document.getElementById("zoom-in").addEventListener("click", () => view.zoomBy(0.6));
  document.getElementById("zoom-out").addEventListener("click", () => view.zoomBy(1 / 0.6));
  document.getElementById("zoom-reset").addEventListener("click", () => view.resetZoom());
  for (const name of ["counters", "exposed", "critical"]) {
    const node = document.getElementById(name);
    node.addEventListener("change", () => { view[name] = node.checked; view.draw(); });
    node.parentElement.hidden = !view.sections.some((s) => s.summary.has.has(name));
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && event.target.tagName !== "INPUT") { event.preventDefault(); document.getElementById("search").focus(); }
    if (event.key === "Escape" && event.target.tagName !== "INPUT") view.select(null, -1);
  });
}

// Charts that the page's maker put into `charts`: Plotly figures whose colours name families. Each is
// drawn when it first comes near the screen, and again when the theme changes.
function drawCharts(view) {
  for (const chart of embedded("charts") || []) {
    if (view.chartWatch[chart.id]) view.chartWatch[chart.id].disconnect();
    const watch = new IntersectionObserver((entries) => {
      if (!entries.some((e) => e.isIntersecting)) return;
      watch.disconnect();
      setTimeout(() => drawChart(view, chart), 0);
    }, { rootMargin: "200px" });
    view.chartWatch[chart.id] = watch;
    const node = document.getElementById(chart.id);
    node.style.height = `${chart.layout.height}px`;
    watch.observe(node);
  }
}

function drawAllCharts(view) {
  for (const chart of embedded("charts") || []) drawChart(view, chart);
}

function drawChart(view, { id, traces, layout }) {
  const dark = view.theme === "dark";
  const colour = (name) => {
    const family = view.families.find((one) => one.name === name);
    return family ? familyColour(family, 1, dark) : name;
  };
  const painted = traces.map((t) => ({ ...t, marker: { ...t.marker, color: colour(t.marker.color) } }));
  const axis = { gridcolor: css("--grid"), zerolinecolor: css("--rule"), automargin: true, fixedrange: true };
  const font = { family: "system-ui, sans-serif", size: 12, color: css("--ink") };
  const page = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: css("--plot"), font };
  const full = { ...layout, ...page, xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis } };
  Plotly.react(document.getElementById(id), painted, full, { displayModeBar: false, responsive: true });
}

function start() {
  const view = new View();
  window.moeOverlap = view; // for the console, and for tests
  document.getElementById("theme").addEventListener("click", () => setTheme(view, view.theme === "dark" ? "light" : "dark"));
  document.getElementById("theme").textContent = view.theme === "dark" ? "Light" : "Dark";
  drawCharts(view);
  startSlots();
  if (!view.sections.length) { document.body.dataset.ready = "yes"; return; }
  listenControls(view);
  drawLegend(view);
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const section = view.sections.find((s) => s.node === entry.target);
      section.near = entry.isIntersecting;
      section.measure();
      if (section.inView && section.stale) section.draw();
    }
    document.body.dataset.ready = "yes";
    view.drawNearSoon();
  }, { rootMargin: "300px" });
  for (const section of view.sections) watch.observe(section.node);
  addEventListener("resize", () => view.draw());
  let screenTheme = view.theme;
  addEventListener("beforeprint", () => { screenTheme = view.theme; setTheme(view, "light"); view.drawAll(); });
  addEventListener("afterprint", () => setTheme(view, screenTheme));
}

start();
