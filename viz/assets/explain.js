// The token picker of the slots figure: a token's ids in both layouts, and where they sit.

function slotRow(title, cells, last) {
  const row = element("tr", {}, element("th", { scope: "row", textContent: title }));
  cells.forEach((text, k) => {
    const className = k === cells.length - 1 && last ? "shared" : "";
    row.append(element("td", { textContent: String(text), className }));
  });
  return row;
}

function showToken(slots, token) {
  const body = document.querySelector("#token tbody");
  const home = slots.layout === "global" ? "all" : !token.waterfill_rank ? 0 : `0 or ${token.waterfill_rank}`;
  const weight = (name) => Number(slots.shared_weight[name].toPrecision(4));
  const last = (cell) => (slots.shared ? [cell] : []);
  const rows = [
    ["expert chosen", [...token.routed, ...last("shared")]],
    ["rank that holds it", [...token.ranks, ...last(home)]],
    ["id, global layout", token.global_ids],
    ["id, per-rank layout", token.per_rank_ids],
    ["weight, global layout", [...token.routed.map(() => "w"), ...last(weight("global"))]],
    ["weight, per-rank layout", [...token.routed.map(() => "w"), ...last(weight("per_rank"))]],
  ];
  if (token.waterfill_rank !== null) {
    const id = token.waterfill_rank * (slots.experts_per_rank + 1) + slots.experts_per_rank;
    rows.push(["id with Waterfill", [...token.per_rank_ids.slice(0, -1), id]]);
  }
  body.replaceChildren(...rows.map(([title, cells]) => slotRow(title, cells, slots.shared)));
  const picked = new Set(slots.layout === "global" ? token.global_ids : token.per_rank_ids);
  for (const cell of document.querySelectorAll("#slots td[data-id]")) cell.classList.toggle("picked", picked.has(Number(cell.dataset.id)));
}

function startSlots() {
  const select = document.getElementById("token-picker");
  const explained = embedded("explanation");
  if (!select || !explained) return;
  const { slots } = explained;
  for (const { token } of slots.tokens) select.append(element("option", { value: String(token), textContent: `token ${token} of rank 0` }));
  select.addEventListener("change", () => showToken(slots, slots.tokens[Number(select.value)]));
  if (slots.tokens.length) showToken(slots, slots.tokens[0]);
}
