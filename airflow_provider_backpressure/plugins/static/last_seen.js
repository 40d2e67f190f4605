// Whether what the page shows is of now: how long ago the server was last heard, and whether changes are pushed.

import { put } from "./dom.js";

const STALE = 8; // seconds

const pulse = document.getElementById("pulse");

let seen = null;
let pushed = false;

export function saw() {
  seen = Date.now();
  beat();
}

export function tellPushed(heard) {
  pushed = heard;
  beat();
}

function beat() {
  const age = seen === null ? null : Math.round((Date.now() - seen) / 1000);
  const stale = age === null || age > STALE;
  pulse.className = stale ? "pulse stale" : "pulse";
  put(pulse, age === null ? "Loading …" : stale ? `Last seen ${age} s ago` : pushed ? "Live, as it happens" : "Live, every 2 s");
  pulse.title = pushed ? "Changes are pushed to this page." : "Changes are not pushed to this page now: it looks by itself.";
}

setInterval(beat, 1000);
