// One hydration: the two answers first, then the pipe, the gate, the charts, the ranges, and who steered.

import { get } from "./api.js";
import { draw as drawCharts, frames } from "./charts.js";
import { controls } from "./controls.js";
import { amount, bar, barClass, bytes, classes, DASH, drawState, duration, el, lasting, named, outward, percent, put, rate, share, show, skeleton, spread, STATES, time, whole, words } from "./dom.js";
import { pipe } from "./pipe.js";
import { planning, preview } from "./planning.js";
import { ranges } from "./ranges.js";

// Each look asks for the hydration itself; what changes slowly is asked for less often, and so is what took long.
const LEAST = { course: 4000, map: 1500, history: 8000 };
const REST = 10; // times as long as it took

export function detail(main, id, { path, again }) {
  const due = {};
  let course = null;
  let said = null;
  const title = el("h1");
  const under = el("p", { class: "quiet identity" });
  const badges = el("p", { class: "row" }, el("span"), el("span", { class: "note" }));
  const failure = fault(id);
  const steer = controls(id, anew);
  const done = answer("How much is done?");
  const keeping = answer("Is it keeping up?");
  const flow = pipe();
  const gate = gateCard();
  const charts = frames();
  const map = ranges(id, anew);
  const lag = lagCard();
  const before = planning(again);
  const told = el("dl", { class: "facts" });
  const unknown = el("p", {}, "Nothing was planned yet, so it is not known how many rows there are.");
  const acts = el("tbody");
  const noActs = el("p", { class: "quiet", hidden: true }, "Nobody has steered this hydration.");
  const actTable = el("div", { class: "scroll" },
    el("table", {}, el("caption", { class: "unseen" }, "Acts of people, the latest first"),
      el("thead", {}, el("tr", {}, ...["When", "Who", "What", "Reason"].map((head) => el("th", { scope: "col" }, head)))), acts));
  const notBegun = card("Before it runs", unknown, told, before.node);
  const begun = el("div", { class: "detail" },
    el("div", { class: "answers" }, done.node, keeping.node),
    card("The pipe", flow.node),
    el("div", { class: "two" }, card("The gate", gate.node), card("The plan", gate.facts)),
    lag.node,
    charts.node,
    card("Ranges", map.node));
  const all = el("div", { class: "detail" },
    el("div", { class: "head" }, el("div", {}, title, under, badges), steer.node),
    failure.node,
    notBegun, begun,
    card("History", noActs, actTable));
  const waiting = skeleton(12);
  show(all, false);
  main.append(waiting, all);
  path("…");

  function anew() {
    for (const name of Object.keys(due)) delete due[name];
    again();
  }

  async function part(name) {
    const begun = Date.now();
    if (begun < (due[name] ?? 0)) return null;
    due[name] = Infinity;
    try {
      return await get(`hydrations/${id}/${name}`);
    } finally {
      due[name] = Date.now() + Math.max(LEAST[name], REST * (Date.now() - begun));
    }
  }

  async function look() {
    const [one, over, tiles, acts] = await Promise.all([get(`hydrations/${id}`), part("course"), part("map"), part("history")]);
    show(waiting, false);
    show(all, true);
    show(notBegun, !one.begun);
    show(begun, one.begun);
    course = over ?? course;
    head(one);
    steer.draw(one);
    if (one.begun) {
      answered(one);
      flow.draw(one);
      gate.draw(one);
      lag.draw(one);
      if (over) drawCharts(charts, over, one);
      if (tiles) map.draw(tiles.tiles, one);
    } else {
      before.draw(one.owner, one.may_plan);
      show(unknown, !one.preview);
      show(told, Boolean(one.preview));
      if (one.preview) keep(told, one.preview, () => preview(one.preview));
    }
    if (acts) history(acts.acts);
    announce(one);
  }

  function head(one) {
    const [source, target] = [named(one.source), named(one.target)];
    const shown = `${source.name} → ${target.name}`;
    if (title.textContent !== shown) title.replaceChildren(el("span", { class: "name" }, ...words(source.name)), " → ", el("span", { class: "name" }, ...words(target.name)));
    const places = `${source.place} → ${target.place} · DAG ${one.owner} · cluster ${one.cluster}`;
    if (under.textContent !== places) under.replaceChildren(...words(places));
    path(target.name);
    document.title = `${percent(one.percent)} ${target.name} · Backpressure`;
    drawState(badges.children[0], one);
    put(badges.children[1], one.state_note && one.state !== "failed" ? one.state_note : " ");
    failure.draw(one);
  }

  function answered(one) {
    const ends = { succeeded: `complete since ${time(one.hydrated_at)}`, following: `snapshot complete since ${time(one.hydrated_at)}` };
    const running = one.phase !== "steady_state";
    const failed = one.ranges?.failed ? `; ${whole(one.ranges.failed)} failed ${one.ranges.failed === 1 ? "range" : "ranges"}` : "";
    done.draw(one.percent, percent(one.percent),
      `${whole(one.rows)} of ${one.total_exact ? "" : "about "}${whole(one.total)} ${one.unit}${failed}`,
      ends[one.state] ?? (one.rows_per_second === null ? STATES[one.state] : `${rate(one.rows_per_second, one.unit)}${left(one)}`), barClass(one.state));
    // A snapshot is not behind its source: there is nothing to keep up with.
    const verdicts = { "not keeping up": "No", "keeping up": "Yes", "caught up": "Yes, caught up", idle: "At the next run", unknown: "Not known yet" };
    // The verdict itself is above already.
    const lagging = one.keeping_up === "caught up" && !one.keeping_up_sentence.includes(":") ? "The target has all that the source has" : figures(one.keeping_up_sentence);
    const behind = Object.entries(one.lag_by_key).filter(([, lag]) => lag > 0).sort(([, one], [, other]) => other - one);
    const most = behind.length > 1 ? `. Furthest: ${behind.slice(0, 3).map(([key, lag]) => `${key} (${amount(lag, one.log_unit)})`).join(", ")}.` : "";
    keeping.draw(null, one.followed ? verdicts[one.keeping_up] ?? DASH : "Not followed", one.followed ? `${lagging}${most}${old(one)}` : "The source is read once: its later changes are not copied.",
      one.bottleneck ? `The bottleneck is ${BOTTLENECKS[one.bottleneck] ?? one.bottleneck}.` : running && one.stages.length ? "No stage holds the others up." : "");
    classes(keeping.figure, "large", one.keeping_up === "not keeping up" && "warn-text");
  }

  function history(found) {
    show(noActs, found.length === 0);
    show(actTable, found.length > 0);
    const shown = JSON.stringify(found);
    if (acts.dataset.shown === shown) return;
    acts.dataset.shown = shown;
    acts.replaceChildren(...found.map((act) =>
      el("tr", {}, el("td", { class: "figure left" }, time(act.at)), el("td", {}, act.who), el("td", {}, what(act)), el("td", {}, act.why ?? DASH))));
  }

  // Only what matters is said aloud: not every figure that moves.
  function announce(one) {
    const now = `${STATES[one.state]}, ${one.paused_by ? "paused" : one.open ? "gate open" : "gate closed"}`;
    if (said !== null && said !== now) document.getElementById("news").textContent = now;
    said = now;
  }

  return {
    id,
    look,
    ids: () => [id],
    select: (seq) => map.select(seq),
    themed: () => { charts.forget(); anew(); },
    failed: (error) => { if (error.status === 404 || error.status === 403) { show(all, false); show(waiting, true); waiting.replaceChildren(error.message); } },
    close: () => { charts.close(); document.title = "Backpressure"; },
  };
}

export function card(title, ...children) {
  return el("section", { class: "card", "aria-label": title }, el("h2", {}, title), ...children);
}

function answer(question) {
  const figure = el("p", { class: "large" });
  const [first, second] = [el("p"), el("p", { class: "quiet" })];
  const progress = bar();
  return {
    figure,
    node: el("section", { class: "card answer", "aria-label": question }, el("h2", {}, question), figure, progress.node, first, second),
    draw(value, large, text, more, kind) {
      put(figure, large);
      show(progress.node, value !== null);
      if (value !== null) progress.draw(value, question, kind);
      put(first, text);
      show(second, Boolean(more));
      put(second, more);
    },
  };
}

const BOTTLENECKS = { admit: "the gate", read: "reading", "read+transform": "reading and the transform", transform: "the transform", sink: "the sink", maintenance: "the maintenance of the target" };

const OLD = 90; // seconds, after which a figure of the source carries its age
const old = (one) => (one.lag_age_seconds > OLD ? `. As of ${duration(one.lag_age_seconds)} ago.` : "");

// What has failed: the error, the range with its bounds and attempt, and the way to the task's log.
function fault(id) {
  const error = el("p", {});
  const range = el("a");
  const bounds = el("span", { class: "quiet" });
  const log = outward();
  const next = el("p", { class: "quiet" });
  const node = el("section", { class: "card fault", role: "alert", "aria-label": "What has failed", hidden: true }, el("h2", {}), error, el("p", {}, range, " ", bounds), el("p", {}, log), next);
  return {
    node,
    draw(one) {
      const failed = one.state === "failed";
      show(node, failed || (one.state === "stale" && Boolean(one.task)));
      if (node.hidden) return;
      classes(node, "card", failed ? "fault" : "doubt");
      put(node.children[0], failed ? `Failed${one.failed_at ? ` at ${time(one.failed_at)}` : ""}` : "Its task does not report");
      put(error, failed ? one.failure ?? one.failed_range?.error ?? one.state_note : `${one.state_note[0].toUpperCase()}${one.state_note.slice(1)}. Airflow's page of the task says whether it still runs, waits for a retry, or has ended.`);
      const one_range = one.failed_range;
      show(range.parentElement, Boolean(one_range));
      if (one_range) {
        range.href = `#/hydration/${id}/range/${one_range.seq}`;
        put(range, `Range ${whole(one_range.seq)}`);
        put(bounds, `${one_range.bounds}, attempt ${one_range.attempt}${one.failure && !one.failure.includes(one_range.error) ? `: ${one_range.error}` : ""}`);
      }
      show(next, failed);
      put(next, `What is committed is kept. Once the cause is gone, clear the failed task, or trigger DAG ${one.owner}: the next run continues from there.`);
      show(log.parentElement, Boolean(one.task));
      if (one.task) {
        log.href = one.task.href;
        put(log, `Log of the task ${one.task.task_id}${one.task.try_number ? `, try ${one.task.try_number}` : ""}`);
      }
    },
  };
}

// Until the snapshot is in, which says nothing of whether later changes are kept up with.
const left = (one) => (one.eta_seconds === null ? "" : ` · snapshot complete in ${lasting(one.eta_seconds)}${one.eta_soonest_seconds === null ? "" : ` (${spread(one)})`}`);

// The verdict is shown above already: what follows it are the figures.
const figures = (sentence) => sentence.replace(/^(NO|yes[^:]*|no run is under way): /, "").replace(/^./, (first) => first.toUpperCase());

function what(act) {
  if (act.action.endsWith("-range")) return `${act.action.replace("-", " ")} ${whole(act.values.seq)}`;
  if (act.action !== "set") return act.action;
  const words = { credits: "credits", range_rows: "rows per range", priority: "priority" };
  return Object.entries(act.values).map(([name, value]) => `${words[name] ?? name} = ${value || name === "priority" ? whole(value) : "as declared"}`).join(", ");
}

function lagCard() {
  const list = el("dl", { class: "lags" });
  const node = card("Lag by partition", list);
  return {
    node,
    draw(one) {
      const lags = Object.entries(one.lag_by_key);
      show(node, lags.length > 1);
      const most = Math.max(1, ...lags.map(([, lag]) => lag));
      keep(list, [lags, one.log_unit], () => lags.flatMap(([key, lag]) => {
        const fill = el("span", { class: lag ? "warn" : "yes" });
        fill.style.width = `${(100 * lag) / most}%`;
        return [el("dt", {}, key), el("dd", {}, el("span", { class: "bar thin", "aria-hidden": "true" }, fill), el("span", { class: "figure" }, lag ? amount(lag, one.log_unit) : "none"))];
      }));
    },
  };
}

function gateCard() {
  const reasons = el("ul", { class: "reasons" });
  const signals = el("div", { class: "signals" });
  const facts = el("dl", { class: "facts" });
  return {
    node: el("div", {}, reasons, signals),
    facts,
    draw(one) {
      const running = one.phase !== "steady_state";
      const rest = { failed: "Nothing is admitted until a run tries again.", stale: "No task reports that could start the next range." }[one.state];
      const pending = running && !(one.ranges?.total && one.ranges.committed === one.ranges.total);
      const held = pending ? one.reasons : [];
      const told = held.length ? held : [rest ?? (pending ? "Open: the next range may start." : "Nothing is left to be admitted.")];
      keep(reasons, told, () => told.map((text) => el("li", { class: held.length ? "held-by" : rest ? "" : "yes" }, text)));
      keep(signals, one.signals, () => one.signals.map(signal));
      const pairs = [
        ["Ranges", one.ranges ? `${whole(one.ranges.committed)} of ${whole(one.ranges.total)} committed, ${whole(one.ranges.admitted)} in flight, ${whole(one.ranges.failed)} failed` : DASH],
        ["Credits", `${one.credits_now} now, ${one.credits_max} at most${one.credits_set ? ` (set manually; declared ${one.credits_declared})` : ""}`],
        ["Rows per range", one.range_rows_set ? `${whole(one.range_rows_set)} (set manually)` : "as declared"],
        ["Priority", one.queue_position ? `${one.priority}; number ${one.queue_position} in the queue` : one.priority],
        ["Admission to commit", duration(one.commit_seconds)],
        ["Memory of a range", bytes(one.range_memory_bytes)],
        ["Consistency", one.plan?.consistency],
        ["Mode, path", one.plan ? `${one.plan.mode}, ${one.plan.path}` : DASH],
        ["Made", time(one.created_at)],
      ];
      keep(facts, pairs, () => pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value ?? DASH))]));
    },
  };
}

function keep(node, value, make) {
  const shown = JSON.stringify(value);
  if (node.dataset.shown === shown) return;
  node.dataset.shown = shown;
  node.replaceChildren(...make());
}

function signal(one) {
  const level = one.utilisation === null ? 1 : Math.min(1, one.utilisation);
  const kind = one.closed ? "no" : one.warning ? "warn" : one.utilisation >= 0.7 ? "warn" : "yes";
  const fill = el("span", { class: kind });
  fill.style.width = `${Math.round(level * 100)}%`;
  return el("div", { class: "signal" },
    el("span", {}, one.sentence),
    el("span", { class: "figure quiet" }, share(one.utilisation)),
    el("div", { class: "bar thin", role: "meter", "aria-label": one.name, "aria-valuemin": "0", "aria-valuemax": "1", "aria-valuenow": level.toFixed(2) }, fill));
}
