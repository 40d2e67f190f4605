// All hydrations in one table: searched, filtered, sorted and grouped in the browser; and the queues of their clusters.

import { keepQuery, query } from "./address.js";
import { get } from "./api.js";
import { el, named, put, show, skeleton, STATES, whole } from "./dom.js";
import { COLUMNS, compare, line, ORDER } from "./overview_columns.js";
import { planning } from "./planning.js";
import { drawQueues } from "./queues.js";

const FIRST = 100; // asked for at each look: those under way come first
const AT_ONCE = 30; // asked for at the very first look
const MORE = 200; // asked for at a time of all others
const SHOWN = 100; // rows that are drawn, until more are wanted
const LEAST = 15000; // between two looks at all others
const REST = 10; // times as long as that took
const GROUPS = { dag: (one) => one.owner, schema: (one) => named(one.target).name.split(".").slice(0, -1).join(".") || named(one.target).name };
const server = (identity) => named(identity).server;

export function overview(main, { dag, path, straight, again }) {
  const known = new Map();
  const rows = new Map();
  let total = 0;
  let most = SHOWN;
  let due = 0;
  let seen = false;
  let visible = [];
  const asked = query();
  const wish = { sort: asked.get("sort") ?? "state", down: asked.get("down") ?? "" };

  const search = el("input", { id: "search", type: "search", placeholder: "Name of a table or DAG", value: asked.get("q") ?? "", oninput: changed });
  const chooser = (id, all) => el("select", { id, onchange: changed }, el("option", { value: "" }, all));
  const state = chooser("by-state", "All states");
  state.append(...ORDER.map((name) => el("option", { value: name }, STATES[name])));
  const choosers = { state, dag: chooser("by-dag", "All DAGs"), source: chooser("by-source", "All sources"), target: chooser("by-target", "All targets") };
  const group = el("select", { id: "group", onchange: changed }, el("option", { value: "" }, "No groups"), el("option", { value: "dag" }, "By DAG"), el("option", { value: "schema" }, "By schema of the target"));
  const label = (id, text, node) => el("div", { class: "field" }, el("label", { for: id }, text), node);
  const filters = el("form", { class: "filters", role: "search", "aria-label": "Find hydrations", onsubmit: (event) => event.preventDefault() },
    label("search", "Search", search), label("by-state", "State", state), dag ? null : label("by-dag", "DAG", choosers.dag),
    label("by-source", "Source", choosers.source), label("by-target", "Target", choosers.target), label("group", "Group", group));
  const heads = Object.fromEntries(COLUMNS.map(({ key, head }) => [key, el("button", { type: "button", class: "sort", onclick: () => sortBy(key) }, head)]));
  const cells = Object.fromEntries(COLUMNS.map(({ key }) => [key, el("th", { scope: "col", class: key }, heads[key])]));
  const inner = el("table", { class: "wide overview" },
    el("caption", { class: "unseen" }, "Hydrations; the button in a column's head sorts by it"),
    el("thead", {}, el("tr", {}, ...Object.values(cells))));
  const table = el("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "Hydrations" }, inner);
  const waiting = skeleton(8);
  const empty = el("section", { class: "empty", hidden: true });
  const none = el("p", { class: "empty", hidden: true }, "No hydration matches. ", el("button", { type: "button", onclick: clear }, "Clear search and filters"));
  const sums = el("ul", { class: "sums" });
  const where = el("span", { class: "quiet", "aria-live": "polite" });
  const more = el("button", { type: "button", onclick: () => { most += SHOWN; draw(); } }, "Show more");
  const pager = el("div", { class: "row end" }, where, more);
  const queues = el("section", { class: "card queues", hidden: true, "aria-label": "Queues" });
  const before = planning(again);
  empty.append(...nothing(dag), ...(dag ? [before.node] : []));
  for (const node of [filters, table, pager, sums]) show(node, false);
  main.append(el("h1", {}, dag ? `Hydrations of ${dag}` : "Hydrations"), sums, filters, waiting, table, none, pager, empty, queues);
  group.value = asked.get("group") ?? "";
  path();

  function changed() {
    most = SHOWN;
    draw();
    keepQuery({ q: search.value, ...Object.fromEntries(Object.entries(choosers).map(([name, node]) => [name, node.value])), group: group.value, sort: wish.sort === "state" ? "" : wish.sort, down: wish.down });
  }

  function clear() {
    search.value = "";
    for (const node of Object.values(choosers)) node.value = "";
    changed();
    search.focus();
  }

  function sortBy(key) {
    [wish.down, wish.sort] = [wish.sort === key && !wish.down ? "1" : "", key];
    changed();
  }

  const ask = (limit, offset) => get(`hydrations?${new URLSearchParams({ limit, offset, ...(dag ? { dag_id: dag } : {}) })}`);

  async function look() {
    const limit = seen ? FIRST : AT_ONCE;
    const [found, waited] = await Promise.all([ask(limit, 0), seen ? get("queue") : null]);
    if (straight && dag && found.total === 1) {
      // The tab of a DAG with one hydration shows it at once; the way back leads here.
      location.replace(`#/hydration/${found.hydrations[0].id}`);
      return;
    }
    total = found.total;
    if (total <= limit) known.clear();
    for (const one of found.hydrations) known.set(one.id, one);
    before.draw(dag, found.may_plan);
    seen = true;
    draw();
    if (waited) drawQueues(queues, waited.clusters, again);
    // The first rows are there; what else there is comes now.
    else return again();
    if (total > FIRST && Date.now() >= due) others();
  }

  // Many are asked for a piece at a time, and less often; the first rows are there long before.
  async function others() {
    due = Infinity;
    const begun = Date.now();
    const ids = new Set();
    try {
      for (let offset = 0; offset < total; offset += MORE) {
        const found = await ask(MORE, offset);
        for (const one of found.hydrations) { known.set(one.id, one); ids.add(one.id); }
        total = found.total;
        draw();
      }
      for (const id of known.keys()) if (!ids.has(id)) known.delete(id);
    } catch {
      // The next look asks again, and says what is wrong.
    } finally {
      due = Date.now() + Math.max(LEAST, REST * (Date.now() - begun));
    }
    draw();
  }

  function fill(name, values) {
    const node = choosers[name];
    const wanted = [...new Set(values)].sort();
    if (node.dataset.shown === wanted.join("\n")) return;
    node.dataset.shown = wanted.join("\n");
    const kept = node.value || asked.get(name) || "";
    node.replaceChildren(node.firstElementChild, ...wanted.map((value) => el("option", { value }, value)));
    node.value = wanted.includes(kept) ? kept : "";
  }

  function fits(one) {
    const text = search.value.trim().toLowerCase();
    return (!state.value || one.state === state.value)
      && (!choosers.dag.value || one.owner === choosers.dag.value)
      && (!choosers.source.value || server(one.source) === choosers.source.value)
      && (!choosers.target.value || server(one.target) === choosers.target.value)
      && (!text || `${one.source} ${one.target} ${one.owner} ${one.id}`.toLowerCase().includes(text));
  }

  function draw() {
    if (!seen) return;
    const every = [...known.values()];
    fill("dag", every.map((one) => one.owner));
    fill("source", every.map((one) => server(one.source)));
    fill("target", every.map((one) => server(one.target)));
    if (asked.get("state") && !state.dataset.shown) state.value = asked.get("state");
    state.dataset.shown = "1";
    const found = every.filter(fits).sort(compare(wish.sort, Boolean(wish.down)));
    const by = GROUPS[group.value];
    if (by) found.sort((one, other) => by(one).localeCompare(by(other)));
    const cut = found.slice(0, most);
    visible = cut.map((one) => one.id);
    show(waiting, false);
    for (const node of [sums, filters]) show(node, total > 0);
    show(table, found.length > 0);
    show(none, total > 0 && found.length === 0);
    show(empty, total === 0);
    show(pager, found.length > 0 && (found.length > SHOWN || found.length < total));
    show(more, found.length > cut.length);
    const shown = found.length < every.length ? `${whole(cut.length)} of ${whole(found.length)} that match shown, of ${whole(total)} in all` : `${whole(cut.length)} of ${whole(total)} shown`;
    put(where, `${shown}${known.size < total ? `; ${whole(total - known.size)} more are being read` : ""}`);
    counted(sums, every, total);
    for (const { key } of COLUMNS) cells[key].setAttribute("aria-sort", wish.sort === key ? (wish.down ? "descending" : "ascending") : "none");
    place(cut, by, found);
  }

  function place(cut, by, found) {
    const ids = new Set(visible);
    for (const [id, row] of rows) if (!ids.has(id)) { row.node.remove(); rows.delete(id); }
    const sections = [];
    for (const one of cut) {
      const name = by ? by(one) : "";
      if (sections.at(-1)?.name !== name) sections.push({ name, lines: [] });
      sections.at(-1).lines.push(one);
    }
    const bodies = [...inner.tBodies];
    while (bodies.length < sections.length) bodies.push(inner.appendChild(el("tbody")));
    for (const body of bodies.splice(sections.length)) body.remove();
    sections.forEach(({ name, lines }, index) => {
      const body = bodies[index];
      const nodes = lines.map((one) => {
        const row = rows.get(one.id) ?? line();
        rows.set(one.id, row);
        row.draw(one);
        return row.node;
      });
      if (by) nodes.unshift(headOf(body, name, found.filter((one) => by(one) === name).length));
      else body.head = null;
      // What is in its place already is left alone: focus stays where it is.
      nodes.forEach((node, at) => { if (body.children[at] !== node) body.insertBefore(node, body.children[at] ?? null); });
      while (body.children.length > nodes.length) body.lastChild.remove();
    });
  }

  function headOf(body, name, number) {
    const shown = `${name} · ${whole(number)}`;
    if (body.head?.dataset.shown !== shown) {
      body.head = el("tr", { class: "group", "data-shown": shown }, el("th", { scope: "rowgroup", colspan: COLUMNS.length }, name, " ", el("span", { class: "quiet" }, whole(number))));
    }
    return body.head;
  }

  return { look, ids: () => visible.slice(0, FIRST) };
}

function nothing(dag) {
  return [
    el("h2", {}, dag ? "This DAG has no hydration yet" : "No hydration yet"),
    el("p", {}, "A hydration appears here with its first plan: trigger a DAG that calls ", el("code", {}, "hydrate(…)"), "."),
    el("p", { class: "quiet" }, "You see those of the DAGs that you may read."),
  ];
}

function counted(sums, every, total) {
  const numbers = every.reduce((found, one) => ({ ...found, [one.state]: (found[one.state] ?? 0) + 1 }), {});
  const facts = [["in all", total], ...ORDER.filter((name) => numbers[name]).map((name) => [STATES[name].toLowerCase(), numbers[name]])];
  const shown = JSON.stringify(facts);
  if (sums.dataset.shown === shown) return;
  sums.dataset.shown = shown;
  sums.replaceChildren(...facts.map(([word, figure]) => el("li", {}, el("b", {}, whole(figure)), " ", word)));
}
