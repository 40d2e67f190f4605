// Small helpers: elements, and figures as people read them. Text only ever goes in as text.

export const DASH = "—";

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// What has not changed is left alone: focus and a reader's place stay where they are.
export function put(node, text) {
  const shown = text === null || text === undefined || text === "" ? DASH : String(text);
  if (node.textContent !== shown) node.textContent = shown;
}

// A link that leads out of this page, in the whole window: by click, by key, and in a tab of its own as browsers do that.
export const outward = (attributes = {}) => el("a", { target: "_top", onclick: leave, onauxclick: leave, ...attributes });

// Airflow shows this page in a frame that may neither leave nor open others: links go by the outer page, which may.
function leave(event) {
  const outside = outer();
  if (!outside || event.button > 1) return;
  event.preventDefault();
  const way = outside.createElement("a");
  const link = event.currentTarget;
  const apart = link.target === "_blank" || event.button === 1 || event.ctrlKey || event.metaKey || event.shiftKey;
  way.href = link.href;
  if (apart) [way.target, way.rel] = ["_blank", "noopener noreferrer"];
  outside.body.append(way);
  way.click();
  way.remove();
}

// In the frame of another site there is none to go by: the link's own target counts there.
function outer() {
  try {
    return window.parent !== window ? window.parent.document : null;
  } catch {
    return null;
  }
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

export function classes(node, ...names) {
  const wanted = names.filter(Boolean).join(" ");
  if (node.className !== wanted) node.className = wanted;
}

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const whole = (value) => (value === null || value === undefined ? DASH : WHOLE.format(value));
export const short = (value) => (value === null || value === undefined ? DASH : SHORT.format(value));
export const share = (value) => (value === null || value === undefined ? DASH : `${Math.round(value * 100)} %`);
// Already rounded down: 100 is shown when everything is in, not before.
export const percent = (value) => (value === null || value === undefined ? DASH : `${value.toFixed(1)} %`);
export const rate = (value, unit) => (value === null || value === undefined ? DASH : `${short(value)} ${unit}/s`);

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return DASH;
  const all = Math.round(seconds);
  const [hours, minutes, rest] = [Math.floor(all / 3600), Math.floor(all / 60) % 60, all % 60];
  const two = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

// A length of time in a sentence, where it could be taken for a time of day.
export const lasting = (seconds) => (seconds === null || seconds === undefined ? DASH : `${duration(seconds)} ${seconds >= 3600 ? "h" : "min"}`);

// The ETA's interval, that recent rates span; a standstill among them has no latest end.
export const spread = (one) => `${duration(one.eta_soonest_seconds)} ${one.eta_latest_seconds === null ? "or longer" : `to ${duration(one.eta_latest_seconds)}`}`;

export function bytes(value) {
  if (value === null || value === undefined) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let index = 0;
  while (size >= 1024 && index < units.length - 1) [size, index] = [size / 1024, index + 1];
  return `${size.toFixed(index && size < 100 ? 1 : 0)} ${units[index]}`;
}

// What a source's log is counted in: offsets, transactions, bytes.
export const amount = (value, unit) => (value === null || value === undefined ? DASH : unit === "bytes" ? bytes(value) : `${short(value)} ${unit}`);
export const speed = (value, unit) => (value === null || value === undefined ? DASH : `${amount(value, unit)}/s`);

// The time zone that is chosen in Airflow, and a clock of 24 hours as its own pages have.
export function zone() {
  try {
    const kept = JSON.parse(localStorage.getItem("timezone") ?? "null");
    return kept === "local" ? undefined : kept || "UTC";
  } catch {
    return "UTC";
  }
}

export function time(text) {
  if (!text) return DASH;
  const style = (options) => new Intl.DateTimeFormat("sv-SE", { timeZone: zone(), hourCycle: "h23", ...options });
  const [at, day] = [new Date(text), { year: "numeric", month: "2-digit", day: "2-digit" }];
  const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit" };
  const today = style(day).format(at) === style(day).format(new Date());
  return style(today ? clock : { ...day, ...clock }).format(at);
}

// postgres://host:5432/shop/public.orders: the end is what people call it.
export function named(identity) {
  const rest = identity.split("/").slice(3).join("/");
  const [place, ...table] = rest.split("/");
  const whole = table.join("/") || place || identity;
  // A hash distinguishes a part of a table from other parts, or is the id of a log that tables share: it says nothing to people.
  const name = whole
    .replace(/#[0-9a-f]{12}$/, "")
    .replace(/^(?:(.*)\.)?backpressure_[0-9a-f]{32}$/, (_, schema) => (schema ? `shared log (${schema})` : "shared log"));
  const kind = identity.split("://")[0];
  // One name may go into several kinds of target: a list has to show which.
  const label = kind === "postgres" ? name : `${name} (${kind})`;
  return { kind, name, label, place: identity, server: identity.endsWith(`/${whole}`) ? identity.slice(0, -whole.length - 1) : identity };
}

// A name may be broken behind its dots, slashes and underscores, and nowhere else.
export const words = (name) => name.split(/(?<=[./_])/).flatMap((part, index) => (index ? [document.createElement("wbr"), part] : [part]));

// What is drawn in the place of what is not there yet.
export function skeleton(lines) {
  return el("div", { class: "card skeleton", role: "status", "aria-label": "Loading" }, ...Array.from({ length: lines }, () => el("span", { class: "bone" })));
}

export function bar() {
  const fill = el("span");
  const text = el("span", { class: "figure" });
  const node = el("div", { class: "bar", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100" }, fill);
  return {
    node: el("div", { class: "progress" }, node, text),
    draw(value, label, kind = "") {
      fill.style.width = `${value ?? 0}%`;
      classes(fill, kind);
      if (value === null) node.removeAttribute("aria-valuenow");
      else node.setAttribute("aria-valuenow", value);
      node.setAttribute("aria-label", label);
      put(text, percent(value));
    },
  };
}

// The state is derived by the server, once for page, API and command line. Red is for a fault, and for nothing else.
export const STATES = {
  "not begun": "Not begun", planning: "Planning", queued: "Queued", running: "Running", throttled: "Throttled", paused: "Paused",
  verifying: "Verifying", failed: "Failed", succeeded: "Succeeded", following: "Following", stale: "Stale",
};
export const barClass = (state) => ({ failed: "no", stale: "old" })[state] ?? "";
export const stateClass = (state) => `state-${state.replace(" ", "-")}`;
export function drawState(node, one) {
  classes(node, "badge", stateClass(one.state));
  put(node, STATES[one.state] ?? one.state);
  node.title = one.state_note;
}
export const RANGES = { planned: "planned", admitted: "in flight", committed: "committed", failed: "failed", revoked: "skipped" };
