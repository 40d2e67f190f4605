// The map of the ranges, and the ranges themselves, page by page.

import { get } from "./api.js";
import { DASH, duration, el, put, RANGES as WORDS, show, time, whole } from "./dom.js";
import { oneRange } from "./range.js";

const STATES = Object.keys(WORDS);
const PAGE = 50;

export function ranges(id, anew) {
  let tiles = [];
  let from = -1;
  let after = -1;
  let by = "state";
  const grid = el("div", { class: "map", role: "group", "aria-label": "Map of the ranges" });
  const summary = el("p", { class: "quiet" });
  const legend = el("p", { class: "legend quiet" });
  const chooser = el("fieldset", { class: "row" }, el("legend", { class: "unseen" }, "Colour by"),
    ...["state", "duration", "attempts"].map((name) => el("label", { class: "choice" },
      el("input", { type: "radio", name: "map-by", value: name, checked: name === by, onchange: () => { by = name; paint(); } }), name)));
  const state = el("select", { id: "range-state", onchange: () => page(-1) }, el("option", { value: "" }, "all"), ...STATES.map((name) => el("option", { value: name }, WORDS[name])));
  const body = el("tbody");
  const heads = ["Range", "State", "Bounds", "Rows", "Attempt", "Took", "Committed", "Error"];
  const table = el("div", { class: "scroll close", hidden: true, tabindex: "0", role: "region", "aria-label": "Ranges" },
    el("table", { class: "wide" }, el("caption", { class: "unseen" }, "Ranges of the plan in their order"),
      el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))), body));
  const trouble = el("p", { class: "trouble", role: "alert", hidden: true });
  const first = el("button", { type: "button", onclick: () => page(-1) }, "First");
  const next = el("button", { type: "button", onclick: () => page(after) }, "Next");
  const list = el("button", { type: "button", onclick: () => page(-1) }, "List the ranges");
  const pager = el("div", { class: "row end", hidden: true }, first, next);
  const none = el("p", { class: "quiet", hidden: true }, "There is no plan with ranges yet.");
  const single = oneRange(id, () => { anew(); if (!table.hidden) page(from); });
  const inner = el("div", {}, el("div", { class: "row spread" }, summary, chooser), grid, legend,
    el("div", { class: "row" }, el("label", { for: "range-state" }, "Ranges that are"), state, list), single.node, trouble, table, pager);

  async function page(first) {
    from = first;
    show(trouble, false);
    const query = new URLSearchParams({ after: from, limit: PAGE, ...(state.value ? { state: state.value } : {}) });
    try {
      const found = await get(`hydrations/${id}/ranges?${query}`);
      after = found.next_after;
      next.disabled = after === null;
      body.replaceChildren(...(found.ranges.length ? found.ranges.map((one) => row(id, one)) : [el("tr", {}, el("td", { colspan: heads.length, class: "quiet" }, "No range is so."))]));
      show(table, true);
      show(pager, true);
    } catch (error) {
      put(trouble, error.message);
      show(trouble, true);
    }
  }

  function paint() {
    const longest = Math.max(0.001, ...tiles.map((tile) => tile.seconds ?? 0));
    const most = Math.max(2, ...tiles.map((tile) => tile.attempts));
    while (grid.children.length > tiles.length) grid.lastChild.remove();
    while (grid.children.length < tiles.length) {
      grid.append(el("button", { type: "button", class: "tile", tabindex: grid.children.length ? "-1" : "0" }));
    }
    tiles.forEach((tile, index) => {
      const node = grid.children[index];
      const [kind, depth] = toned(tile, by, longest, most);
      const key = `${kind}/${depth.toFixed(2)}/${tile.attempts}/${tile.last}`;
      if (node.dataset.key === key) return;
      node.dataset.key = key;
      node.className = `tile ${kind}`;
      node.style.setProperty("--depth", `${Math.round(depth * 100)}%`);
      const told = words(tile);
      node.title = told;
      node.setAttribute("aria-label", told);
    });
    const keys = { state: STATES.map((name) => [name, WORDS[name]]), duration: [["took low", "0 s"], ["took", duration(longest)]], attempts: [["tried low", "1"], ["tried", String(most)]] }[by];
    legend.replaceChildren(...keys.flatMap(([kind, word]) => [el("span", { class: `key ${kind}` }), `${word} `]));
  }

  grid.addEventListener("click", (event) => {
    const index = [...grid.children].indexOf(event.target);
    if (index < 0) return;
    const { first, last } = tiles[index];
    if (first === last) { location.hash = `#/hydration/${id}/range/${first}`; return; }
    state.value = "";
    page(first - 1);
  });
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const every = [...grid.children];
    const to = Math.max(0, Math.min(every.length - 1, every.indexOf(document.activeElement) + step));
    every.forEach((node) => node.setAttribute("tabindex", "-1"));
    every[to].setAttribute("tabindex", "0");
    every[to].focus();
  });

  return {
    node: el("div", {}, none, inner),
    select: (seq) => single.select(seq),
    draw(found, one) {
      tiles = found;
      single.draw(one);
      show(none, found.length === 0);
      show(inner, found.length > 0);
      if (!found.length) return;
      const each = found[0].last - found[0].first + 1;
      put(summary, `${whole(one.ranges?.total)} range${one.ranges?.total === 1 ? "" : "s"}${each > 1 ? `, ${whole(each)} in each tile` : ""}`);
      paint();
    },
  };
}

function toned(tile, by, longest, most) {
  if (by === "duration") return tile.seconds === null ? ["planned", 1] : ["took", 0.12 + (0.88 * tile.seconds) / longest];
  if (by === "attempts") return tile.attempts === 0 ? ["planned", 1] : ["tried", 0.12 + (0.88 * (tile.attempts - 1)) / (most - 1)];
  const held = tile.states;
  const all = Object.values(held).reduce((sum, number) => sum + number, 0);
  // The worst is shown first: among many that are in, one that failed must not hide.
  for (const state of ["failed", "admitted"]) if (held[state]) return [state, 1];
  if (held.committed) return ["committed", 0.35 + (0.65 * held.committed) / all];
  return [held.planned ? "planned" : "revoked", 1];
}

function words(tile) {
  const name = tile.first === tile.last ? `Range ${tile.first}` : `Ranges ${tile.first} to ${tile.last}`;
  const states = Object.entries(tile.states).map(([state, number]) => (tile.first === tile.last ? WORDS[state] : `${number} ${WORDS[state]}`)).join(", ");
  const took = tile.seconds === null ? "" : `, ${tile.first === tile.last ? "took" : "longest"} ${tile.seconds.toFixed(1)} s`;
  const tried = tile.attempts > 1 ? `, ${tile.attempts} attempts` : "";
  return `${name}: ${states}${took}${tried}`;
}

function row(id, one) {
  return el("tr", {},
    el("th", { scope: "row", class: "figure" }, el("a", { href: `#/hydration/${id}/range/${one.seq}`, "aria-label": `Range ${one.seq}` }, whole(one.seq))),
    el("td", {}, el("span", { class: `key ${one.state}` }), WORDS[one.state]),
    el("td", { class: "bounds" }, one.bounds),
    el("td", { class: "figure" }, one.rows === null ? `about ${whole(one.planned_rows)}` : whole(one.rows)),
    el("td", { class: "figure", title: one.tag ?? "" }, String(one.attempt)),
    el("td", { class: "figure" }, one.seconds === null ? DASH : `${one.seconds.toFixed(1)} s`),
    el("td", { class: "figure" }, time(one.committed_at)),
    el("td", { class: "bounds" }, one.error ?? DASH));
}
