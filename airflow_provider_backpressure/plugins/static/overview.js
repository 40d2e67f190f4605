// All hydrations in one table, and the queues of their clusters.

import { get, post } from "./api.js";
import { ask } from "./controls.js";
import { amount, bytes, classes, drawState, duration, el, named, percent, put, rate, share, show, short, spread, time, whole } from "./dom.js";
import { planning } from "./planning.js";

const PAGE = 50;
const HEADS = [
  "Hydration", "Phase", "Progress", "ETA", "Rate", "Memory", "Credits", "Gate", "Keeping up", "Bottleneck",
];

export function overview(main, { dag, path, straight, again }) {
  let offset = 0;
  let shown = [];
  const rows = new Map();
  const body = el("tbody");
  const empty = el("section", { class: "empty", hidden: true });
  const table = el(
    "div",
    { class: "card scroll", tabindex: "0", role: "region", "aria-label": "Hydrations" },
    el("table", { class: "wide" },
      el("caption", { class: "unseen" }, "Hydrations, those under way first"),
      el("thead", {}, el("tr", {}, ...HEADS.map((head) => el("th", { scope: "col" }, head)))),
      body),
  );
  const sums = el("ul", { class: "sums" });
  const back = el("button", { type: "button", onclick: () => turn(-PAGE) }, "Previous");
  const on = el("button", { type: "button", onclick: () => turn(PAGE) }, "Next");
  const where = el("span", { class: "quiet" });
  const pager = el("div", { class: "row end" }, where, back, on);
  const queues = el("section", { class: "card queues", hidden: true, "aria-label": "Queues" });
  const before = planning(again);
  const words = nothing(dag);
  empty.append(...words, ...(dag ? [before.node] : []));
  main.append(el("h1", {}, dag ? `Hydrations of ${dag}` : "Hydrations"), sums, table, pager, empty, queues);
  path();

  async function turn(step) {
    offset = Math.max(0, offset + step);
    again();
  }

  async function look() {
    const query = new URLSearchParams({ limit: PAGE, offset, ...(dag ? { dag_id: dag } : {}) });
    const [found, waiting] = await Promise.all([get(`hydrations?${query}`), get("queue")]);
    if (straight && dag && found.total === 1) {
      // The tab of a DAG with one hydration shows it at once; the way back leads here.
      location.replace(`#/hydration/${found.hydrations[0].id}`);
      return;
    }
    shown = found.hydrations.map((one) => one.id);
    draw(found);
    drawQueues(queues, waiting.clusters, again);
  }

  function draw(found) {
    show(table, found.total > 0);
    show(sums, found.total > 0);
    show(pager, found.total > PAGE);
    show(empty, found.total === 0);
    before.draw(dag, found.may_plan);
    put(where, `${offset + 1} to ${offset + found.hydrations.length} of ${whole(found.total)}`);
    back.disabled = offset === 0;
    on.disabled = offset + PAGE >= found.total;
    summed(sums, found);
    const ids = new Set(found.hydrations.map((one) => one.id));
    for (const [id, row] of rows) if (!ids.has(id)) { row.node.remove(); rows.delete(id); }
    found.hydrations.forEach((one, index) => {
      const row = rows.get(one.id) ?? line();
      rows.set(one.id, row);
      if (body.children[index] !== row.node) body.insertBefore(row.node, body.children[index] ?? null);
      row.draw(one);
    });
  }

  return { look, ids: () => shown };
}

function nothing(dag) {
  return [
    el("h2", {}, dag ? "This DAG has no hydration yet" : "No hydration yet"),
    el("p", {}, "A hydration appears here with its first plan: trigger a DAG that calls ", el("code", {}, "hydrate(…)"), "."),
    el("p", { class: "quiet" }, "You see those of the DAGs that you may read."),
  ];
}

function summed(sums, found) {
  const running = found.hydrations.filter((one) => one.begun && one.phase !== "steady_state" && one.state !== "failed");
  const facts = [
    [whole(found.total), "in all"],
    [whole(running.length), "under way"],
    [whole(running.filter((one) => !one.open).length), "held back"],
    [whole(found.hydrations.filter((one) => one.paused_by).length), "paused"],
    [whole(found.hydrations.filter((one) => one.state === "failed").length), "failed"],
  ];
  facts.forEach(([figure, word], index) => {
    const item = sums.children[index] ?? sums.appendChild(el("li", {}, el("b"), " ", el("span")));
    put(item.children[0], figure);
    put(item.children[1], word);
  });
}

export function bar() {
  const fill = el("span");
  const text = el("span", { class: "figure" });
  const node = el("div", { class: "bar", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100" }, fill);
  return {
    node: el("div", { class: "progress" }, node, text),
    draw(value, label) {
      fill.style.width = `${value ?? 0}%`;
      if (value === null) node.removeAttribute("aria-valuenow");
      else node.setAttribute("aria-valuenow", value);
      node.setAttribute("aria-label", label);
      put(text, percent(value));
    },
  };
}

function line() {
  const link = el("a");
  const under = el("small");
  const phase = el("span");
  const turn = el("small");
  const progress = bar();
  const rowsDone = el("small");
  const gate = el("span");
  const reason = el("small");
  const left = el("span");
  const interval = el("small", { title: "By how much the rates of the last minutes differ" });
  const verdict = el("span");
  const behind = el("small");
  const cells = Object.fromEntries(["eta", "rate", "memory", "credits", "keeping", "bottleneck"].map((name) => [name, el("td")]));
  for (const name of ["eta", "rate", "memory", "credits"]) cells[name].className = "figure";
  cells.keeping.append(verdict, behind);
  cells.eta.append(left, interval);
  const node = el("tr", {},
    el("th", { scope: "row" }, link, under),
    el("td", {}, phase, turn),
    el("td", { class: "grows" }, progress.node, rowsDone),
    cells.eta, cells.rate, cells.memory, cells.credits,
    el("td", { class: "reason" }, gate, reason),
    cells.keeping, cells.bottleneck);
  cells.keeping.className = "keeping";
  return {
    node,
    draw(one) {
      const [source, target] = [named(one.source), named(one.target)];
      const running = one.phase !== "steady_state";
      link.href = `#/hydration/${one.id}`;
      put(link, target.name);
      put(under, `from ${source.name} · ${one.owner}`);
      under.title = `${source.place} → ${target.place}`;
      drawState(phase, one);
      progress.draw(one.percent, `Progress of ${target.name}`);
      put(rowsDone, !one.begun ? "Nothing is planned" : `${short(one.rows)} of ${one.total_exact ? "" : "about "}${short(one.total)} ${one.unit}`);
      put(left, duration(one.eta_seconds));
      show(interval, one.eta_soonest_seconds !== null);
      put(interval, spread(one));
      put(cells.rate, rate(one.rows_per_second, one.unit));
      put(cells.memory, one.memory_limit && one.memory_used !== null ? share(one.memory_used / one.memory_limit) : null);
      cells.memory.title = one.memory_limit && one.memory_used !== null ? `${bytes(one.memory_used)} of ${bytes(one.memory_limit)} in the fullest executor` : "";
      put(cells.credits, `${one.in_flight} of ${one.credits_now}`);
      cells.credits.title = `${one.in_flight} in flight; ${one.credits_now} credits, at most ${one.credits_max}`;
      const [kind, word] = standing(one, running);
      classes(gate, "badge", kind);
      put(gate, word);
      put(reason, [one.state === "failed" && one.failure, one.failed && `${one.failed} failed`, one.reasons[0]].filter(Boolean).join("; ") || " ");
      reason.title = one.reasons.join("\n");
      put(verdict, one.keeping_up === "unknown" ? null : one.keeping_up);
      verdict.className = one.keeping_up === "not keeping up" ? "bad" : "";
      show(behind, Boolean(one.lag));
      put(behind, `${amount(one.lag, one.log_unit)} behind`);
      cells.keeping.title = one.keeping_up_sentence;
      put(cells.bottleneck, one.bottleneck);
      show(turn, one.queue_position !== null);
      put(turn, `number ${one.queue_position} in the queue`);
    },
  };
}

export function standing(one, running) {
  if (one.paused_by) return ["paused", "Paused"];
  if (!running || !one.begun) return ["calm", "At rest"];
  return one.open ? ["open", "Open"] : ["closed", "Closed"];
}

function drawQueues(section, clusters, again) {
  show(section, clusters.length > 0);
  const shown = JSON.stringify(clusters);
  if (section.dataset.shown === shown) return;
  section.dataset.shown = shown;
  section.replaceChildren(el("h2", {}, "Queues"), ...clusters.map((one) => queue(one, again)));
}

function queue(one, again) {
  const last = one.acts[0];
  const words = `${one.running} of ${one.at_once} under way, ${one.waiting || "none"} waiting`;
  return el("div", { class: "cluster", role: "group", "aria-label": `Queue of ${one.cluster}` },
    el("div", { class: "row spread" },
      el("h3", {}, one.cluster, " ", el("span", { class: "quiet" }, words)),
      one.may_steer ? el("button", { type: "button", "aria-label": `Change the queue of ${one.cluster}`, onclick: () => change(one, again) }, "Change …") : null),
    last ? el("p", { class: "quiet" }, `Set to ${last.values.most} by ${last.who} at ${time(last.at)}${last.why ? `: ${last.why}` : ""}.`) : null,
    el("ol", { class: "queue" },
      ...one.turns.filter((turn) => !turn.running).map((turn) =>
        el("li", { value: turn.position },
          el("a", { href: `#/hydration/${turn.id}` }, named(turn.target).name), " ",
          el("span", { class: "quiet" }, turn.starts_in_seconds === null ? "nobody can say when it starts" : `starts in about ${duration(turn.starts_in_seconds)}`)))));
}

const change = (one, again) => ask(
  {
    title: `Change the queue of ${one.cluster}`,
    text: "So many sources hydrate at once there. If you raise it, the next one starts within a second; if you lower it, running ones continue.",
    yes: "Change",
    fields: [{ id: "queue-most", name: "at_once", label: "At once", hint: `now ${one.at_once}; 0 lets none begin`, value: one.at_once, min: 0, max: 10000, required: true }],
  },
  async (why, { at_once }) => { await post("queue", { cluster: one.cluster, at_once: Number(at_once), why }); again(); });
