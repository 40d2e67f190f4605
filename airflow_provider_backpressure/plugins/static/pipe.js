// The pipe: source, gate, read, transform, sink; rates at its ends, credits at the gap, and what each stage does with its time.

import { amount, classes, el, named, put, rate, share, show, speed } from "./dom.js";

const MOST_DOTS = 24;

function box(kind, title) {
  const [head, figure, note] = [el("h3", {}, title), el("p", { class: "figure big" }), el("p", { class: "quiet" })];
  const spent = el("div", { class: "spent", role: "img" }, el("span", { class: "busy" }), el("span", { class: "held" }), el("span", { class: "idle" }));
  const node = el("li", { class: `stage ${kind}` }, head, figure, note, spent);
  return {
    node,
    draw({ name = title, figure: large, note: small, stage, worst }) {
      put(head, name);
      put(figure, large);
      put(note, small);
      show(spent, Boolean(stage));
      classes(node, "stage", kind, worst && "worst", stage && `level-${stage.level.toLowerCase()}`);
      if (!stage) return;
      [stage.busy, stage.backpressured, stage.idle].forEach((part, index) => { spent.children[index].style.flexGrow = part; });
      const told = `${share(stage.busy)} busy, ${share(stage.backpressured)} held back, ${share(stage.idle)} idle`;
      spent.setAttribute("aria-label", told);
      spent.title = told;
    },
  };
}

// The stages between gate and sink: read, with the transform if there is one; both apart only in figures of an earlier release.
function apart(one, stages) {
  if (!one.plan?.transform) return ["read"];
  if (stages.transform) return ["read", "transform"];
  return stages.read && !stages["read+transform"] ? ["read"] : ["read+transform"];
}

export function pipe() {
  const source = box("source", "Source");
  const gate = box("gate", "Gate");
  const read = box("read", "Read");
  const transform = box("transform", "Transform");
  const sink = box("sink", "Sink");
  const dots = el("p", { class: "dots", role: "img" });
  gate.node.insertBefore(dots, gate.node.children[1]);
  const legend = el("p", { class: "legend quiet" }, "In the last minute: ",
    el("span", { class: "key busy" }), "busy ", el("span", { class: "key held" }), "held back ", el("span", { class: "key idle" }), "idle");
  return {
    node: el("div", {}, el("ol", { class: "pipe" }, source.node, gate.node, read.node, transform.node, sink.node), legend),
    draw(one) {
      const running = one.rows_per_second !== null || one.stages.length > 0 || one.in_flight > 0;
      const stages = running ? Object.fromEntries(one.stages.map((stage) => [stage.stage, stage])) : {};
      const told = (stage) => (stage ? `${share(stage.busy)} busy, ${share(stage.backpressured)} held back` : running ? "not known yet" : "at rest");
      const worst = (name) => one.bottleneck === name;
      const worked = (name) => ({ figure: stages[name] ? share(stages[name].busy) : "—", note: told(stages[name]), stage: stages[name], worst: worst(name) });
      source.draw({ figure: one.upstream_rate === null ? named(one.source).name : speed(one.upstream_rate, one.log_unit), note: `${named(one.source).kind}${one.lag === null ? "" : ` · lag ${amount(one.lag, one.log_unit)}`}` });
      gate.draw({ figure: `${one.in_flight} of ${one.credits_now}`, note: stages.admit ? told(stages.admit) : one.open ? "credits in flight" : one.reasons[0], stage: stages.admit, worst: worst("admit") });
      const between = apart(one, stages);
      read.draw({ name: between.length > 1 || !one.plan?.transform ? "Read" : "Read and transform", ...worked(between[0]) });
      show(transform.node, between.length > 1);
      if (between.length > 1) transform.draw(worked(between[1]));
      sink.draw({ figure: rate(one.rows_per_second, one.unit), note: told(stages.sink), stage: stages.sink, worst: worst("sink") });
      const shown = Math.min(one.credits_max, MOST_DOTS);
      const taken = Math.round((one.in_flight / Math.max(1, one.credits_max)) * shown);
      const given = Math.round((one.credits_now / Math.max(1, one.credits_max)) * shown);
      dots.setAttribute("aria-label", `${one.in_flight} ranges in flight, ${one.credits_now} credits, at most ${one.credits_max}`);
      const want = Array.from({ length: shown }, (_, index) => (index < taken ? "taken" : index < given ? "free" : "none"));
      if (dots.dataset.shown !== want.join()) {
        dots.dataset.shown = want.join();
        dots.replaceChildren(...want.map((kind) => el("span", { class: `dot ${kind}` })));
      }
    },
  };
}
