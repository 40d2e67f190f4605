// The queues of the Spark clusters.

import { post } from "./api.js";
import { ask } from "./controls.js";
import { duration, el, named, show, time, words } from "./dom.js";

export function drawQueues(section, clusters, again) {
  show(section, clusters.length > 0);
  const shown = JSON.stringify(clusters);
  if (section.dataset.shown === shown) return;
  section.dataset.shown = shown;
  section.replaceChildren(el("h2", {}, "Queues"), ...clusters.map((one) => queue(one, again)));
}

function queue(one, again) {
  const last = one.acts[0];
  const counted = one.at_once ? `${one.running} under way, at most ${one.at_once} at once, ${one.waiting || "none"} waiting` : `blocked: its limit is 0 at once, ${one.waiting || "none"} waiting`;
  return el("div", { class: "cluster", role: "group", "aria-label": `Queue of ${one.cluster}` },
    el("div", { class: "row spread" },
      el("h3", {}, one.cluster, " ", el("span", { class: "quiet" }, counted)),
      one.may_steer ? el("button", { type: "button", "aria-label": `Change the queue of ${one.cluster}`, onclick: () => change(one, again) }, "Change …") : null),
    last ? el("p", { class: "quiet" }, `Set to ${last.values.most} by ${last.who} at ${time(last.at)}${last.why ? `: ${last.why}` : ""}.`) : null,
    el("ol", { class: "queue" },
      ...one.turns.filter((turn) => !turn.running).map((turn) =>
        el("li", { value: turn.position },
          el("a", { href: `#/hydration/${turn.id}` }, ...words(named(turn.target).name)), " ",
          el("span", { class: "quiet" }, one.at_once === 0 ? "waits until more are allowed at once" : turn.starts_in_seconds === null ? "nobody can say when it starts" : `starts in about ${duration(turn.starts_in_seconds)}`)))));
}

const change = (one, again) => ask(
  {
    title: `Change the queue of ${one.cluster}`,
    text: "So many sources hydrate at once there. If you raise it, the next one starts within a second; if you lower it, running ones continue.",
    yes: "Change",
    fields: [{ id: "queue-most", name: "at_once", label: "At once", hint: `now ${one.at_once}; 0 blocks the queue`, value: one.at_once, min: 0, max: 10000, required: true }],
  },
  async (why, { at_once }) => { await post("queue", { cluster: one.cluster, at_once: Number(at_once), why }); again(); });
