// One hydration as a row of the overview, and what its columns are sorted by.

import { amount, bar, barClass, classes, DASH, drawState, duration, el, named, put, rate, show, short, spread, time, words } from "./dom.js";

// What needs a person comes first.
export const ORDER = ["failed", "stale", "throttled", "paused", "verifying", "running", "planning", "queued", "not begun", "following", "succeeded"];

const at = (text) => (text ? Date.parse(text) : null);
export const COLUMNS = [
  { key: "target", head: "Target", value: (one) => named(one.target).label },
  { key: "source", head: "Source", value: (one) => named(one.source).label },
  { key: "state", head: "State", value: (one) => ORDER.indexOf(one.state) },
  { key: "progress", head: "Progress", value: (one) => one.percent },
  { key: "throughput", head: "Throughput", value: (one) => one.rows_per_second },
  { key: "eta", head: "ETA", value: (one) => one.eta_seconds },
  { key: "lag", head: "Lag", value: (one) => one.lag },
  { key: "started", head: "Started", value: (one) => at(one.started_at) },
  { key: "duration", head: "Duration", value: (one) => one.duration_seconds },
  { key: "dag", head: "DAG", value: (one) => one.owner },
];

// Unknown figures come last in either direction.
export function compare(key, down) {
  const { value } = COLUMNS.find((column) => column.key === key) ?? COLUMNS[2];
  return (one, other) => {
    const [left, right] = [value(one), value(other)];
    if (left === right) return (at(other.started_at) ?? 0) - (at(one.started_at) ?? 0) || (one.id < other.id ? -1 : 1);
    if (left === null || right === null) return left === null ? 1 : -1;
    return (left < right ? -1 : 1) * (down ? -1 : 1);
  };
}

export function line() {
  const [link, state, note, done, source] = [el("a"), el("span"), el("small", { class: "note" }), el("small"), el("span")];
  const progress = bar();
  const [left, interval] = [el("span"), el("small", { title: "By how much the rates of the last minutes differ" })];
  const [behind, verdict] = [el("span"), el("small")];
  const cell = (key, ...children) => el("td", { class: key, "data-label": COLUMNS.find((column) => column.key === key).head }, ...children);
  const figures = Object.fromEntries(["throughput", "started", "duration", "dag"].map((key) => [key, el("span")]));
  const node = el("tr", {},
    el("th", { scope: "row" }, link),
    cell("source", source),
    cell("state", state, note),
    cell("progress", progress.node, done),
    cell("throughput", figures.throughput), cell("eta", left, interval), cell("lag", behind, verdict),
    cell("started", figures.started), cell("duration", figures.duration), cell("dag", figures.dag));
  return {
    node,
    draw(one) {
      const [from, target] = [named(one.source), named(one.target)];
      link.href = `#/hydration/${one.id}`;
      keepWords(link, target.label);
      link.title = target.place;
      keepWords(source, from.label);
      source.title = from.place;
      keepWords(figures.dag, one.owner);
      drawState(state, one);
      put(note, one.state_note || " ");
      note.title = one.state_note;
      progress.draw(one.percent, `Progress of ${target.name}`, barClass(one.state));
      put(done, one.begun ? `${short(one.rows)} of ${one.total_exact ? "" : "about "}${short(one.total)} ${one.unit}` : "Nothing is planned");
      put(figures.throughput, one.rows_per_second === null ? DASH : rate(one.rows_per_second, one.unit));
      put(left, duration(one.eta_seconds));
      show(interval, one.eta_soonest_seconds !== null);
      put(interval, spread(one));
      put(behind, one.lag === null ? DASH : one.lag ? amount(one.lag, one.log_unit) : "none");
      const slow = one.lag !== null && one.keeping_up === "not keeping up";
      show(verdict, slow);
      put(verdict, "not keeping up");
      classes(verdict, slow && "warn-text");
      behind.title = one.lag === null ? "" : one.keeping_up_sentence;
      put(figures.started, time(one.started_at));
      put(figures.duration, duration(one.duration_seconds));
    },
  };
}

function keepWords(node, text) {
  if (node.dataset.shown === text) return;
  node.dataset.shown = text;
  node.replaceChildren(...words(text));
}
