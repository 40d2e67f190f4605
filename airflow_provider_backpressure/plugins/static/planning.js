// What a plan would be: asked of a run of the DAG, since this page never runs a DAG's code.

import { trigger } from "./api.js";
import { ask } from "./controls.js";
import { DASH, el, outward, put, show, time, whole } from "./dom.js";

export function planning(changed) {
  let dag = null;
  const button = el("button", { type: "button", onclick: confirm }, "Ask for its plan …");
  const run = outward();
  const told = el("p", { role: "status", hidden: true }, "Asked for. It appears here when the task plan_snapshot of ", run, " is through; a DAG that is paused in Airflow begins when it is not.");
  const mayNot = el("p", { class: "quiet", hidden: true }, "To see what its plan would be takes the right to trigger the DAG.");

  function confirm() {
    ask({
      title: `What would ${dag} plan?`,
      text: "A run of the DAG is triggered in which hydrations only plan: they ask source, target and executors, and write nothing there. Tasks before a hydration run as in any run; those after it are skipped.",
      yes: "Trigger it",
    }, async (why) => {
      const made = await trigger(dag, { logical_date: null, conf: { backpressure: "plan" }, note: why });
      put(run, made.dag_run_id);
      run.href = `../dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(made.dag_run_id)}`;
      show(told, true);
      changed();
    });
  }

  return {
    node: el("div", { class: "plan-ask" }, button, mayNot, told),
    draw(owner, may) {
      dag = owner;
      show(button, may);
      show(mayNot, !may);
    },
  };
}

const MODES = { copy: "copied in the database's own form", frame: "decoded in Spark" };

export function preview(found) {
  const rows = `${found.exact || found.rows === null ? "" : "about "}${whole(found.rows)}`;
  const pairs = [
    ["Rows", rows],
    ["Ranges", found.ranges === null ? "not known yet" : `about ${whole(found.ranges)} of at most ${whole(found.range_rows)} rows`],
    ["Key", found.key || "none"],
    ["Columns", found.columns],
    ["Consistency", found.consistency],
    ["Mode", found.mode],
    ["Path", `${found.path}: ${MODES[found.path] ?? ""}`],
    ["Credits", found.credits],
    ["Python of the executors", found.python],
    ["As of", time(found.at)],
  ];
  return pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value ?? DASH))]);
}
