// The charts over time. Their script comes from the installed package, and only when a hydration is looked at.

import { el, named, short, show } from "./dom.js";
import { colour } from "./theme.js";

const SCRIPT = "static/plotly.min.js";
let loading = null;

function library() {
  loading ??= new Promise((resolve, reject) => {
    const script = el("script", { src: SCRIPT });
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => { loading = null; reject(new Error("the charts' script did not load")); };
    document.head.append(script);
  });
  return loading;
}

const CHARTS = [
  ["progress", "Progress and executor memory", 250],
  ["rate", "Rate", 200],
  ["source", "Source against target", 200],
  ["credits", "Credits and pressure", 200],
  ["stages", "What the stages do with their time", 380],
];

export function frames() {
  const plots = Object.fromEntries(CHARTS.map(([name, title, height]) => {
    const place = el("div", { class: "plot", "aria-hidden": "true" });
    const frame = el("div", { role: "img", "aria-label": title }, place);
    place.style.height = `${height}px`;
    const none = el("p", { class: "quiet", hidden: true }, name === "source" ? "The source's own rate was not seen yet." : "No samples yet.");
    return [name, { title, place, frame, none, section: el("section", { class: "card", "aria-label": title }, el("h2", {}, title), none, frame) }];
  }));
  const close = () => { for (const { place } of Object.values(plots)) window.Plotly?.purge(place); };
  return { node: el("div", { class: "charts" }, ...Object.values(plots).map((plot) => plot.section)), plots, close, forget: close };
}

function layout(more = {}) {
  const axis = { gridcolor: colour("line"), zerolinecolor: colour("line"), linecolor: colour("line"), tickfont: { color: colour("quiet") }, fixedrange: false };
  const { xaxis = {}, yaxis = {}, ...rest } = more;
  return {
    margin: { l: 56, r: 56, t: 8, b: 32 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "inherit", size: 12, color: colour("text") },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("text") } },
    showlegend: true,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { color: colour("quiet") } },
    uirevision: "kept",
    xaxis: { ...axis, nticks: 6, tickangle: 0, ...xaxis },
    yaxis: { ...axis, rangemode: "tozero", ...yaxis },
    ...Object.fromEntries(Object.entries(rest).map(([name, value]) => [name, /axis\d*$/.test(name) ? { ...axis, ...value } : value])),
  };
}

// The library reads a name as markup, with links; the name of a table must not add markup to this page.
const plain = (name) => name.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

const line = (name, x, y, tone, more = {}) => ({ type: "scatter", mode: x.length < 3 ? "lines+markers" : "lines", name: plain(name), meta: name, x, y, line: { color: colour(tone), width: 2, shape: more.shape }, connectgaps: true, ...more.trace });

// What the chart ends with, for those who hear it.
const latest = (traces) => traces.flatMap(({ name, meta, y, showlegend }) => {
  const last = y.findLast((value) => value !== null && value !== undefined);
  return last === undefined || showlegend === false ? [] : [`${meta ?? name}: ${short(last)}`];
}).join("; ");

// Times as this reader's clock has them: the library itself knows no zones.
const local = (times) => times.map((text) => { const at = new Date(text); return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 23); });

export async function draw(charts, course, one) {
  const Plotly = await library();
  const at = local(course.at);
  const put = (name, traces, more, empty) => {
    const { title, place, frame, none } = charts.plots[name];
    show(none, empty);
    show(frame, !empty);
    if (empty || !place.isConnected) return;
    Plotly.react(place, traces, layout(more), { displayModeBar: false, responsive: true });
    frame.setAttribute("aria-label", `${title}. ${latest(traces)}`);
    // What the library measures texts in.
    document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true");
  };
  const known = course.memory_used.some((value) => value !== null);
  const memory = course.memory_used.map((used, index) => (used !== null && course.memory_limit[index] ? (100 * used) / course.memory_limit[index] : null));
  const wide = { legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { color: colour("quiet") } }, margin: { l: 56, r: 56, t: 30, b: 32 } };
  put("progress", [
    line(`committed, % of ${named(one.target).name}`, at, course.percent, "done", { trace: { fill: "tozeroy", fillcolor: colour("done-wash") } }),
    line(known ? "executor memory, % of its limit" : "executor memory (not seen)", at, memory, "memory", { trace: { yaxis: "y2", visible: true } }),
  ], { ...wide, yaxis: { range: [0, 102], ticksuffix: " %" }, yaxis2: { overlaying: "y", side: "right", range: [0, 102], ticksuffix: " %", showgrid: false, showticklabels: known } }, at.length === 0);
  put("rate", [line(`${one.unit} per second`, at, course.rate, "flow", { trace: { fill: "tozeroy", fillcolor: colour("flow-wash") } })], wide, at.length === 0);
  const logged = course.upstream_rate.some((value) => value !== null);
  put("source", [
    line(`the source makes, ${one.log_unit}/s`, at, course.upstream_rate, "held"),
    line(`committed, ${one.log_unit}/s`, at, course.process_rate, "done"),
  ], wide, !logged);
  put("credits", [
    line("credits", at, course.credits, "flow", { shape: "hv" }),
    line("in flight", at, course.in_flight, "done", { shape: "hv" }),
    line("pressure", at, course.pressure, "held", { trace: { yaxis: "y2" } }),
  ], { ...wide, yaxis: { dtick: one.credits_max <= 10 ? 1 : undefined }, yaxis2: { overlaying: "y", side: "right", rangemode: "tozero", showgrid: false } }, at.length === 0);
  stages(put, course, wide);
}

function stages(put, course, wide) {
  const times = local(course.flow_at);
  const known = ["admit", "read", "read+transform", "transform", "sink"].filter((stage) => course.flow[stage]?.busy.some((value) => value !== null));
  const names = known.length ? known : ["admit", "read", "sink"];
  const states = [["busy", "flow"], ["backpressured", "held"], ["idle", "idle"]];
  const traces = names.flatMap((stage, index) => states.map(([state, tone]) => ({
    type: "bar",
    name: state === "backpressured" ? "held back" : state,
    legendgroup: state,
    showlegend: index === 0,
    x: times,
    y: course.flow[stage][state].map((value) => (value === null ? null : value * 100)),
    yaxis: index ? `y${index + 1}` : "y",
    width: course.flow_seconds * 1000,
    offset: -course.flow_seconds * 1000,
    marker: { color: colour(tone), line: { width: 0 } },
    hovertemplate: `${stage}: %{y:.0f} %`,
  })));
  const row = (index) => [1 - (index + 0.76) / names.length, 1 - index / names.length].map((at) => Math.max(0, at));
  const axes = Object.fromEntries(names.map((stage, index) => [index ? `yaxis${index + 1}` : "yaxis", {
    domain: row(index), range: [0, 100], tickvals: [0, 100], ticksuffix: " %", title: { text: stage, font: { size: 12, color: colour("quiet") } },
  }]));
  put("stages", traces, { ...wide, ...axes, barmode: "stack", bargap: 0, hovermode: "closest", xaxis: { anchor: names.length > 1 ? `y${names.length}` : "y" } }, times.length === 0);
}
