// Requests below the page's own address, with the person's cookie, and never to anywhere else.

export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

const SAID = {
  401: "You are logged out: log in to Airflow again.",
  403: "You may not see this.",
  404: "There is no such hydration (any more).",
};

async function ask(address, options = {}) {
  let answer;
  try {
    answer = await fetch(address, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Refused(0, "Airflow does not answer.");
  }
  // Where the plugin is not loaded, Airflow answers everything with its own page.
  const known = (answer.headers.get("content-type") || "").startsWith("application/json");
  const body = known ? await answer.json() : null;
  if (answer.ok && known) return body;
  const detail = typeof body?.detail === "string" ? body.detail : body?.detail?.[0]?.msg;
  throw new Refused(answer.status, answer.status === 401 ? SAID[401] : detail || SAID[answer.status] || `Airflow answered ${answer.status}.`);
}

const send = (address, body) =>
  ask(address, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

export const get = (path, options) => ask(`api/${path}`, options);
export const post = (path, body) => send(`api/${path}`, body);
// Airflow's own API, which asks for the person's rights by itself. This page is one step below it.
export const trigger = (dag, body) => send(`../api/v2/dags/${encodeURIComponent(dag)}/dagRuns`, body);
