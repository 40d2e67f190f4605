// The charts over time. Their library is loaded when a hydration is looked at, and not before.

import { DASH, el, named, short, show, time, zone } from "./dom.js";
import { colour } from "./theme.js";

const SCRIPT = "static/uplot.min.js";
let loading = null;

function library() {
  loading ??= new Promise((resolve, reject) => {
    const script = el("script", { src: SCRIPT });
    script.onload = () => resolve(window.uPlot);
    script.onerror = () => { loading = null; reject(new Error("the charts' script did not load")); };
    document.head.append(el("link", { rel: "stylesheet", href: "static/uplot.min.css" }), script);
  });
  return loading;
}

const HEIGHT = 190;
const STAGE = 64;
const TIMES = 40;
const CHARTS = [
  ["progress", "Progress and executor memory"],
  ["rate", "Rate"],
  ["source", "Source against target"],
  ["credits", "Credits and pressure"],
  ["stages", "What the stages do with their time"],
];

export function frames() {
  const plots = Object.fromEntries(CHARTS.map(([name, title]) => {
    const place = el("div", { class: name === "stages" ? "plot stages" : "plot", "aria-hidden": "true" });
    const frame = el("div", { role: "img", "aria-label": title }, place);
    const none = el("p", { class: "quiet", hidden: true }, name === "source" ? "The source's own rate was not seen yet." : "No samples yet.");
    place.drawn = [];
    return [name, { title, place, frame, none, section: el("section", { class: "card", "aria-label": title }, el("h2", {}, title), none, frame) }];
  }));
  const close = () => { for (const { place } of Object.values(plots)) clear(place); };
  return { node: el("div", { class: "charts" }, ...Object.values(plots).map((plot) => plot.section)), plots, close, forget: close };
}

function clear(place) {
  for (const { chart, watcher } of place.drawn) {
    watcher.disconnect();
    chart.destroy();
  }
  place.drawn = [];
  place.replaceChildren();
}

const shown = (value) => (value === null || value === undefined ? DASH : short(value));
const stepped = (lib) => lib.paths.stepped({ align: 1 });

// Marks of the axis of time: the clock, and the day where marks are days apart.
function marks(seconds, apart) {
  const [clock, day] = [{ hour: "2-digit", minute: "2-digit" }, { month: "2-digit", day: "2-digit" }];
  const style = apart < 60 ? { ...clock, second: "2-digit" } : apart < 86400 ? clock : day;
  const format = new Intl.DateTimeFormat("sv-SE", { timeZone: zone(), hourCycle: "h23", ...style });
  return seconds.map((each) => format.format(new Date(each * 1000)));
}

const axis = (more) => ({ stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 }, font: "12px system-ui, sans-serif", ...more });

function line(label, values, tone, more = {}) {
  return { values, label, stroke: colour(tone), width: 2, spanGaps: true, points: { show: values.length < 3 }, value: (_, value) => shown(value), ...more };
}

// One chart: lines over the same times. A reader's zoom is kept while values come.
function plot(lib, place, index, at, lines, { height = HEIGHT, times = true, left = {}, right, scales = {} }) {
  const data = [at, ...lines.map((each) => each.values)];
  const labels = lines.map((each) => each.label).join();
  const before = place.drawn[index];
  if (before?.labels === labels) {
    before.chart.setData(data, !before.zoomed);
    if (before.zoomed) before.chart.redraw();
    return;
  }
  const one = { labels, zoomed: false };
  const node = el("div");
  place.append(node);
  one.chart = new lib({
    width: node.clientWidth,
    height,
    tzDate: (seconds) => lib.tzDate(new Date(seconds * 1000), zone()),
    scales: { x: { range: (_, first, last) => (first === last ? [first - 30, last + 30] : [first, last]) }, y: { range: (_, least, most) => [0, most > 0 ? most * 1.05 : 1] }, ...scales },
    padding: [8, right ? 0 : 16, times ? 0 : 8, 0],
    series: [{ label: "at", value: (_, seconds) => (seconds === null ? DASH : time(seconds * 1000)) }, ...lines.map(({ values, ...each }) => each)],
    axes: [
      axis({ show: times, values: (_, splits, __, ___, apart) => marks(splits, apart), space: 70 }),
      axis({ size: 56, values: (_, splits) => splits.map(short), ...left }),
      ...(right ? [axis({ side: 1, scale: "right", size: 56, values: (_, splits) => splits.map(short), ...right, grid: { show: false } })] : []),
    ],
    cursor: { sync: { key: "course" }, bind: { dblclick: (_, __, reset) => (event) => { one.zoomed = false; return reset(event); } } },
    hooks: { setSelect: [(chart) => { if (chart.select.width > 0) one.zoomed = true; }] },
  }, data, node);
  one.watcher = new ResizeObserver(() => { if (node.clientWidth) one.chart.setSize({ width: node.clientWidth, height }); });
  one.watcher.observe(node);
  place.drawn[index] = one;
}

// What the chart ends with, for those who hear it.
const latest = (lines) => lines.flatMap(({ label, values }) => {
  const last = values.findLast((value) => value !== null && value !== undefined);
  return last === undefined ? [] : [`${label}: ${short(last)}`];
}).join("; ");

const PERCENT = { range: [0, 102] };
const percents = { values: (_, splits) => splits.map((each) => `${each} %`) };
const seconds = (times) => times.map((text) => new Date(text).getTime() / 1000);

export async function draw(charts, course, one) {
  const lib = await library();
  const at = seconds(course.at);
  const begin = (name, empty, spoken) => {
    const { title, place, frame, none } = charts.plots[name];
    show(none, empty);
    show(frame, !empty);
    if (empty || !place.isConnected) return null;
    frame.setAttribute("aria-label", `${title}. ${latest(spoken)}`);
    return place;
  };
  const put = (name, lines, more = {}, empty = at.length === 0) => {
    const place = begin(name, empty, lines);
    if (place) plot(lib, place, 0, at, lines, more);
  };
  const known = course.memory_used.some((value) => value !== null);
  const memory = course.memory_used.map((used, index) => (used !== null && course.memory_limit[index] ? (100 * used) / course.memory_limit[index] : null));
  put("progress", [
    line(`committed, % of ${named(one.target).name}`, course.percent, "done", { fill: colour("done-wash") }),
    line(known ? "executor memory, % of its limit" : "executor memory (not seen)", memory, "memory", { scale: "right" }),
  ], { left: percents, right: { ...percents, show: known }, scales: { y: PERCENT, right: PERCENT } });
  put("rate", [line(`${one.unit} per second`, course.rate, "flow", { fill: colour("flow-wash") })]);
  const logged = course.upstream_rate.some((value) => value !== null);
  put("source", [
    line(`the source makes, ${one.log_unit}/s`, course.upstream_rate, "held"),
    line(`committed, ${one.log_unit}/s`, course.process_rate, "done"),
  ], {}, !logged);
  put("credits", [
    line("credits", course.credits, "flow", { paths: stepped(lib) }),
    line("in flight", course.in_flight, "done", { paths: stepped(lib) }),
    line("pressure", course.pressure, "held", { scale: "right" }),
  ], { left: { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }, right: {}, scales: { right: { range: (_, least, most) => [0, Math.max(1, most)] } } });
  stages(lib, begin, course);
}

// A chart of each stage, below each other: the shares of each moment are piled up.
function stages(lib, begin, course) {
  const known = ["admit", "read", "read+transform", "transform", "sink", "maintenance"].filter((stage) => course.flow[stage]?.busy.some((value) => value !== null));
  const names = known.length ? known : ["admit", "read", "sink"];
  const percent = (stage, state) => course.flow[stage][state].map((value) => (value === null ? null : value * 100));
  const place = begin("stages", course.flow_at.length === 0, names.map((stage) => ({ label: `${stage} busy, %`, values: percent(stage, "busy") })));
  if (!place) return;
  if (place.names !== names.join()) clear(place);
  place.names = names.join();
  // Each moment is the end of the seconds of its bar.
  const wide = course.flow_seconds;
  const bars = lib.paths.bars({ disp: { x0: { unit: 1, values: (chart) => chart.data[0].map((end) => end - wide) }, size: { unit: 1, values: () => [wide] } } });
  names.forEach((stage, index) => {
    const [busy, held, idle] = ["busy", "backpressured", "idle"].map((state) => percent(stage, state));
    const over = (...parts) => parts[0].map((_, at) => (parts.some((part) => part[at] === null) ? null : parts.reduce((sum, part) => sum + part[at], 0)));
    // The highest first: each lower one is drawn over it. The legend has the share of each alone.
    const lines = [["idle", "idle", over(busy, held, idle), idle], ["held back", "held", over(busy, held), held], ["busy", "flow", busy, busy]].map(([label, tone, values, own]) =>
      line(`${stage} ${label}`, values, tone, { fill: colour(tone), width: 0, paths: bars, points: { show: false }, own, value: (chart, _, number, at) => (at === null ? DASH : `${shown(chart.series[number].own[at])} %`) }));
    const last = index === names.length - 1;
    plot(lib, place, index, seconds(course.flow_at), lines, { height: last ? STAGE + TIMES : STAGE, times: last, left: percents, scales: { y: PERCENT } });
    lines.forEach(({ own }, number) => { place.drawn[index].chart.series[number + 1].own = own; });
  });
}
