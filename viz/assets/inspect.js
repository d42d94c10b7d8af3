// Hover, click, keyboard and the panel about the selected operation.

function element(tag, properties, ...children) {
  const node = document.createElement(tag);
  Object.assign(node, properties || {});
  node.append(...children);
  return node;
}

const CAUSE_WORDS = {
  queued: "behind its stream",
  dependency: "for an event",
  sm_wait: "for free SMs",
  link_wait: "for shared links",
  peer_wait: "for a peer",
  host: "for the host",
};

function facts(section, i) {
  const { c } = section.data;
  const duration = c.end[i] - c.start[i];
  const rows = [
    ["time", `${micro(duration)}, from ${micro(c.start[i])}`],
    ["kind", c.kinds[c.kind[i]] || "unknown"],
    ["where", `rank ${c.rank[i]}, ${c.lanes[c.lane[i]]}`],
  ];
  if (c.work && c.work[i] >= 0) rows.push(["work", c.works[c.work[i]]]);
  if (c.sms[i]) rows.push(["SMs", String(c.sms[i])]);
  if (c.alone[i]) rows.push(["alone", `${micro(c.alone[i])} (here ×${(duration / c.alone[i]).toFixed(2)})`]);
  if (c.labels[c.label[i]]) rows.push(["cost", c.labels[c.label[i]]]);
  return rows;
}

function waitText(w) {
  return `${micro(w.ns)} ${CAUSE_WORDS[w.cause]}${w.op ? `: ${w.op}` : ""}${w.op && w.rank >= 0 ? ` (rank ${w.rank})` : ""}`;
}

function showTip(section, i, clientX, clientY) {
  const tip = document.getElementById("tip");
  tip.replaceChildren(element("strong", { textContent: section.data.opName(i) }));
  const line = (name, value) => tip.append(element("div", {}, element("span", { textContent: name }), value));
  for (const [name, value] of facts(section, i)) line(name, value);
  for (const w of section.data.waitsOf(i)) line("waited", waitText(w));
  for (const w of section.data.stallsOf(i)) line("stalled", waitText(w));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(clientX + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${clientY + 18 + height > innerHeight ? Math.max(4, clientY - height - 12) : clientY + 18}px`;
}

function hideTip() { document.getElementById("tip").hidden = true; }

function listenPointer(section) {
  const { plot, view } = section;
  let pressed = null;
  plot.addEventListener("mousemove", (event) => {
    if (event.buttons) { hideTip(); return; }
    const i = section.spanAt(event.clientX, event.clientY);
    plot.style.cursor = i < 0 ? "" : "pointer";
    if (i < 0) hideTip();
    else showTip(section, i, event.clientX, event.clientY);
  });
  plot.addEventListener("mouseleave", hideTip);
  plot.addEventListener("mousedown", (event) => { pressed = [event.clientX, event.clientY]; }, true);
  window.addEventListener("mouseup", (event) => {
    const still = pressed && Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) < 4;
    pressed = null;
    if (!still || !section.place(event.clientX, event.clientY)) return;
    view.select(section, section.spanAt(event.clientX, event.clientY));
    plot.focus({ preventScroll: true });
  }, true);
  plot.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const at = section.place(event.clientX, event.clientY);
    view.zoomBy(event.deltaY > 0 ? 1.25 : 0.8, at ? at.ns - section.offset : undefined);
  }, { passive: false });
  plot.addEventListener("keydown", (event) => plotKey(section, event));
}

function plotKey(section, event) {
  const { view } = section;
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  if (event.shiftKey && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
    view.pan(event.key === "ArrowLeft" ? -0.25 : 0.25);
  } else if (moves[event.key]) {
    moveSelection(section, ...moves[event.key]);
  } else if (event.key === "+" || event.key === "=") {
    view.zoomBy(0.6);
  } else if (event.key === "-") {
    view.zoomBy(1 / 0.6);
  } else if (event.key === "0") {
    view.resetZoom();
  } else {
    return;
  }
  event.preventDefault();
}

function moveSelection(section, dx, dy) {
  const { view } = section;
  const { c } = section.data;
  const rows = section.shownRows;
  const here = view.selected && view.selected.section === section ? view.selected.i : -1;
  if (here < 0) {
    const row = rows[0];
    const k = firstEndingAfter(section.data, row.spans, view.window.from + section.offset);
    if (k < row.spans.length) view.reveal(section, row.spans[k]);
    return;
  }
  const y = section.cached.rowOf[here];
  const to = rows[y + dy];
  if (!to) return;
  const middle = (c.start[here] + c.end[here]) / 2;
  const k = dy ? Math.min(firstEndingAfter(section.data, to.spans, middle), to.spans.length - 1) : to.spans.indexOf(here) + dx;
  if (k >= 0 && k < to.spans.length) view.reveal(section, to.spans[k]);
}

function dockList(view, section, title, className, entries) {
  const list = element("ul");
  for (const w of entries) {
    const item = element("li");
    if (w.span >= 0) {
      const link = element("button", { type: "button", className: "link", textContent: w.op });
      link.addEventListener("click", () => view.reveal(section, w.span));
      item.append(link, ` ${w.rank >= 0 ? `rank ${w.rank}, ` : ""}${micro(w.ns)} ${CAUSE_WORDS[w.cause]}`);
    } else {
      item.textContent = waitText(w);
    }
    list.append(item);
  }
  if (!entries.length) list.append(element("li", { className: "none", textContent: "nothing" }));
  return element("div", { className }, element("h3", { textContent: title }), list);
}

function showDock(view) {
  const dock = document.getElementById("dock");
  dock.hidden = !view.selected;
  document.body.classList.toggle("docked", !!view.selected);
  if (!view.selected) return;
  const { section, i } = view.selected;
  const { data } = section;
  const list = element("dl");
  for (const [name, value] of facts(section, i)) list.append(element("dt", { textContent: name }), element("dd", { textContent: value }));
  const close = element("button", { type: "button", className: "close", textContent: "×", ariaLabel: "Close" });
  close.addEventListener("click", () => view.select(null, -1));
  const longest = [...data.waitersOf(i)].sort((a, b) => b.ns - a.ns).slice(0, 40);
  dock.replaceChildren(
    element("div", {}, element("h3", { textContent: `${data.opName(i)} — ${section.name}` }), list),
    dockList(view, section, "Waited for", "causes", data.waitsOf(i)),
    dockList(view, section, "Stalled inside", "causes", data.stallsOf(i)),
    dockList(view, section, "Waited for by", "waiters", longest),
    close,
  );
}
