// The page: which view is shown, and when it looks again.

import { adopt, chosen, tellOuter } from "./address.js";
import { Refused } from "./api.js";
import { el, put, show } from "./dom.js";
import { detail } from "./detail.js";
import { saw, tellPushed } from "./last_seen.js";
import { live } from "./refresh.js";
import { overview } from "./overview.js";
import { follow } from "./theme.js";

const main = document.getElementById("main");
const trouble = document.getElementById("trouble");
const dag = new URLSearchParams(location.search).get("dag");

let view = null;

let place = null;
function path(...names) {
  // What has not changed is left alone: a focus on the link would be lost with each look.
  if (names.join() === place) return;
  place = names.join();
  const top = dag ? `Hydrations of ${dag}` : "All hydrations";
  const items = [names.length ? el("a", { href: "#/" }, top) : el("span", { "aria-current": "page" }, top)];
  items.push(...names.map((name) => el("span", { "aria-current": "page" }, name)));
  document.getElementById("path").replaceChildren(...items.map((item) => el("li", {}, item)));
}

function open({ move = true } = {}) {
  tellOuter();
  const { id, seq } = chosen();
  if (view && id && view.id === id) {
    view.select(seq);
    return;
  }
  view?.close?.();
  main.replaceChildren();
  view = id ? detail(main, id, { path, again: () => turns.now() }) : overview(main, { dag, path, straight: !move, again: () => turns.now() });
  view.select?.(seq);
  if (move) main.focus({ preventScroll: true });
  turns.now();
}

async function look(mine) {
  try {
    await mine.look();
    if (mine !== view) return;
    show(trouble, false);
    saw();
  } catch (error) {
    if (mine !== view) return;
    if (!(error instanceof Refused)) console.error(error);
    put(trouble, error instanceof Refused ? error.message : `The page has a fault: ${error.message}`);
    show(trouble, true);
    mine.failed?.(error);
  }
}

const turns = live(() => view, look, tellPushed);

adopt();
follow(() => view?.themed?.());
addEventListener("hashchange", () => open());
open({ move: false });
