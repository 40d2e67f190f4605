// Manual control of the gate: each act is confirmed, with a reason that stays in the history.

import { post, Refused } from "./api.js";
import { classes, el, named, put, show, whole } from "./dom.js";

const dialog = document.getElementById("ask");
const form = document.getElementById("ask-form");
const part = (name) => document.getElementById(`ask-${name}`);

let send = null;
part("no").addEventListener("click", () => dialog.close());
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  part("yes").disabled = true;
  try {
    await send?.();
    dialog.close();
  } catch (error) {
    put(part("trouble"), error instanceof Refused ? error.message : String(error));
    show(part("trouble"), true);
  } finally {
    part("yes").disabled = false;
  }
});

export function ask({ title, text, yes, fields = [] }, act) {
  part("title").textContent = title;
  part("text").textContent = text;
  part("yes").textContent = yes;
  part("why").value = "";
  part("fields").replaceChildren(...fields.flatMap(({ id, label, value, hint, min, max, required }) => [
    el("label", { for: id }, label, " ", el("span", { class: "quiet" }, hint)),
    el("input", { id, type: "number", step: "1", min, max, required, value }),
  ]));
  show(part("trouble"), false);
  send = () => act(part("why").value, Object.fromEntries(fields.map(({ id, name }) => [name, document.getElementById(id).value])));
  dialog.showModal();
}

export function controls(id, changed) {
  let one = null;
  const tap = el("button", { type: "button", onclick: () => one && (one.paused_by ? resume() : pause()) });
  const set = el("button", { type: "button", onclick: () => one && change() }, "Change …");
  const mayNot = el("p", { class: "quiet", hidden: true }, "You may look, and not steer: that takes the right to edit the DAG.");
  const act = async (name, body) => { await post(`hydrations/${id}/${name}`, body); changed(); };

  const pause = () => ask(
    { title: `Pause ${named(one.target).name}?`, text: `${one.in_flight} ranges in flight will still be committed; no more are admitted.`, yes: "Pause" },
    (why) => act("pause", { why }));
  const resume = () => ask(
    { title: `Resume ${named(one.target).name}?`, text: `Paused by ${one.paused_by}${one.paused_why ? `: ${one.paused_why}` : ""}.`, yes: "Resume" },
    (why) => act("resume", { why }));
  const change = () => ask(
    {
      title: `Change ${named(one.target).name}`,
      text: "What is left empty stays as it is. Credits hold at once, rows per range for what is planned from now on.",
      yes: "Change",
      fields: [
        { id: "set-credits", name: "credits", label: "Credits", min: 0, value: one.credits_set ?? "", hint: `now at most ${one.credits_max}; 0 as declared (${one.credits_declared})` },
        { id: "set-rows", name: "range_rows", label: "Rows per range", min: 0, value: one.range_rows_set ?? "", hint: `now ${one.range_rows_set ? whole(one.range_rows_set) : "as declared"}; 0 as declared` },
        { id: "set-priority", name: "priority", label: "Priority in the queue", min: -1000, max: 1000, value: one.priority, hint: "higher goes first" },
      ],
    },
    (why, values) => {
      const were = { credits: one.credits_set ?? "", range_rows: one.range_rows_set ?? "", priority: one.priority };
      const meant = Object.entries(values).filter(([name, value]) => value !== "" && value !== String(were[name]));
      return act("set", { why, ...Object.fromEntries(meant.map(([name, value]) => [name, Number(value)])) });
    });

  const buttons = el("div", { class: "row" }, tap, set);
  return {
    node: el("div", { class: "steer" }, buttons, mayNot),
    draw(found) {
      one = found;
      put(tap, one.paused_by ? "Resume …" : "Pause …");
      // What is not under way has nothing to pause: the button is no invitation then.
      classes(tap, (one.paused_by || !["failed", "stale", "succeeded"].includes(one.state)) && "primary");
      show(buttons, one.may_steer);
      show(mayNot, !one.may_steer);
    },
  };
}
