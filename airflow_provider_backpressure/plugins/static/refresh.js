// When the page looks again: as soon as it hears of a change, and in any case after a while.

import { get } from "./api.js";

const EVERY = 2000; // where changes are not heard
const CALM = 5000; // where they are: some figures move without one
const LEAST = 400; // between two looks
const AGAIN = 10000; // after which it is asked whether changes can be heard by now

const pause = (time, signal) => new Promise((done) => {
  const timer = setTimeout(done, time);
  signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
});

// `view` returns what is shown, `look` draws it again, `said` receives whether changes arrive.
export function live(view, look, said) {
  const numbers = {};
  let timer = null;
  let pushed = false;
  let running = null;
  let again = false;
  let last = 0;
  let listening = null;
  let control = new AbortController();

  async function now() {
    const shown = view();
    if (running === shown) { again = true; return; }
    clearTimeout(timer);
    running = shown;
    again = false;
    last = Date.now();
    await look(shown);
    if (shown !== view()) return;
    running = null;
    listen();
    if (again) soon();
    else wait(document.hidden ? EVERY * 10 : pushed ? CALM : EVERY);
  }

  function wait(time) {
    clearTimeout(timer);
    timer = setTimeout(now, time);
  }

  function soon() {
    if (running === view()) again = true;
    else wait(Math.max(0, LEAST - (Date.now() - last)));
  }

  // A page that is not seen holds no connection: a browser has but a few for a host.
  function listen() {
    const ids = document.hidden ? [] : [...view().ids()].sort();
    if (ids.join() === listening) return;
    listening = ids.join();
    control.abort();
    control = new AbortController();
    if (ids.length) hear(ids, control.signal);
  }

  async function hear(ids, signal) {
    while (!signal.aborted) {
      let heard = false;
      let moved = false;
      try {
        const query = ids.map((id) => `seen=${id}:${numbers[id] ?? -1}`).join("&");
        const told = await get(`changes?${query}`, { signal });
        if (signal.aborted) return;
        Object.assign(numbers, told.moved);
        heard = told.pushed;
        moved = Object.keys(told.moved).length > 0;
        if (moved) soon();
      } catch {
        if (signal.aborted) return;
      }
      if (heard !== pushed) {
        pushed = heard;
        said(pushed);
        if (!pushed) soon();
      }
      await pause(heard ? moved && LEAST : AGAIN, signal);
    }
  }

  document.addEventListener("visibilitychange", () => { listen(); if (!document.hidden) soon(); });
  return { now };
}
