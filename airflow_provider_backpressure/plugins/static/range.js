// One range: its history, its links, and manual control of it alone.

import { get, post } from "./api.js";
import { ask } from "./controls.js";
import { bytes, classes, DASH, el, outward, put, RANGES, show, time, whole } from "./dom.js";

export function oneRange(id, changed) {
  let seq = null;
  let one = null;
  let owner = null;
  let may = false;
  const title = el("h3", { tabindex: "-1" });
  const badge = el("span", { class: "badge" });
  const facts = el("dl", { class: "facts" });
  const log = outward();
  const job = outward({ target: "_blank", rel: "noopener noreferrer" });
  const tag = el("code");
  const noJob = el("p", { class: "quiet" }, "Spark knows it by ", tag);
  const noTask = el("p", { class: "quiet" }, "No task has taken it yet.");
  const retry = el("button", { type: "button", onclick: () => again() }, "Try again …");
  const skip = el("button", { type: "button", onclick: () => leaveOut() }, "Leave out …");
  const close = el("a", { href: `#/hydration/${id}` }, "Close");
  const trouble = el("p", { class: "trouble", role: "alert", hidden: true });
  const all = el("div", {}, facts, el("div", { class: "row" }, log, job), noTask, noJob, el("div", { class: "row" }, retry, skip));
  const node = el("section", { class: "one", hidden: true, "aria-label": "One range" },
    el("div", { class: "row spread" }, el("div", { class: "row" }, title, badge), close), trouble, all);

  async function look() {
    const asked = seq;
    if (asked === null) return;
    try {
      const found = await get(`hydrations/${id}/ranges/${asked}`);
      if (asked !== seq) return;
      one = found;
      show(trouble, false);
      show(all, true);
      paint();
    } catch (error) {
      if (asked !== seq) return;
      put(trouble, error.message);
      show(trouble, true);
      show(all, false);
    }
  }

  function paint() {
    classes(badge, "badge", `is-${one.state}`);
    put(badge, RANGES[one.state]);
    const pairs = [
      ["Bounds", one.bounds],
      ["Rows", one.rows === null ? `about ${whole(one.planned_rows)}` : `${whole(one.rows)}, ${bytes(one.bytes)}`],
      ["Attempts", one.attempt],
      ["Admitted", time(one.admitted_at)],
      ["Committed", one.seconds === null ? DASH : `${time(one.committed_at)}, after ${one.seconds.toFixed(1)} s`],
      ["Error", one.error],
    ];
    facts.replaceChildren(...pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value ?? DASH))]));
    show(log, Boolean(one.task));
    show(noTask, !one.task && !one.job);
    if (one.task) {
      log.href = one.task.href;
      put(log, one.task.task_id ? `Log of the task${one.task.try_number ? `, try ${one.task.try_number}` : ""}` : "Run that took it");
      log.title = [one.task.task_id, one.task.run_id].filter(Boolean).join(" · ");
    }
    show(job, Boolean(one.job?.href));
    if (one.job?.href) { job.href = one.job.href; put(job, "Session in Spark's pages"); }
    show(noJob, Boolean(one.job));
    put(tag, one.job?.tag);
    show(retry, may && (one.state === "failed" || one.state === "committed"));
    show(skip, may && (one.state === "failed" || one.state === "planned"));
  }

  const send = (name) => async (why) => { await post(`hydrations/${id}/ranges/${seq}/${name}`, { why }); await look(); changed(); };
  const again = () => ask({
    title: `Try range ${seq} again?`,
    text: one.state === "committed"
      ? `Its rows are removed from the target first; then a run of ${owner} that is under way reads it; without one, the next run.`
      : `A run of ${owner} that is under way reads it; without one, the next run.`,
    yes: "Try again",
  }, send("retry"));
  const leaveOut = () => ask({
    title: `Leave range ${seq} out for good?`,
    text: `The target will lack about ${whole(one.planned_rows)} rows, and refuse them should they come late. Only a new plan reads them.`,
    yes: "Leave out",
  }, send("skip"));

  return {
    node,
    select(chosen) {
      seq = chosen === null || chosen === undefined ? null : Number(chosen);
      one = null;
      show(node, seq !== null);
      show(all, false);
      show(trouble, false);
      if (seq === null) return;
      put(title, `Range ${whole(seq)}`);
      put(badge, "…");
      look().then(() => { node.scrollIntoView({ block: "nearest" }); title.focus({ preventScroll: true }); });
    },
    draw(hydration) {
      [owner, may] = [hydration.owner, hydration.may_steer];
      if (one && one.state !== "revoked") look();
    },
  };
}
