// The address of what is shown. It is kept behind the # of this page, and of Airflow's page around it: so it survives a reload and can be shared.

function outer() {
  try {
    return window.parent !== window && window.parent.location.origin === location.origin ? window.parent : null;
  } catch {
    return null;
  }
}

const OURS = /^#\/(hydration\/[0-9a-f]{32}(\/range\/\d+)?)?(\?[^#]*)?$/;

// What the page around this one was opened with counts, unless this one was opened with an address of its own.
export function adopt() {
  const hash = outer()?.location.hash ?? "";
  if (!location.hash && OURS.test(hash)) location.replace(hash);
}

export function tellOuter() {
  const around = outer();
  if (!around || !OURS.test(location.hash || "#/") || around.location.hash === location.hash) return;
  // With its path: Airflow's page has a base, by which an address of a hash alone would leave it.
  const { pathname, search } = around.location;
  around.history.replaceState(around.history.state, "", `${pathname}${search}${location.hash || "#/"}`);
}

export function chosen() {
  const match = /^#\/hydration\/([0-9a-f]{32})(?:\/range\/(\d+))?/.exec(location.hash);
  return { id: match?.[1] ?? null, seq: match?.[2] ?? null };
}

// Search, filters and order of the overview.
export const query = () => new URLSearchParams(location.hash.startsWith("#/?") ? location.hash.slice(3) : "");

// Leaves no entry in the history: each letter of a search would be one.
export function keepQuery(values) {
  const kept = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
  const text = kept.toString();
  history.replaceState(history.state, "", text ? `#/?${text}` : "#/");
  tellOuter();
}
