// The coordinator's HTTP interface, with the token of whoever looks at this page.

const KEY = "tapfinger-token";

/** An answer that is a refusal, or none at all (status 0). */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** Take the token of a link that signs in, and remove it from the address bar and the history. ``came``: is told which
 * other coordinator's page the link was on, if any. */
export function takeTokenFromAddress(came) {
  const given = new URLSearchParams(location.hash.slice(1));
  if (!given.get("token")) return;
  token.set(given.get("token"));
  if (given.get("from")) came(given.get("from"));
  history.replaceState(null, "", location.pathname + location.search);
}

/** Ask; returns the response, or throws Refused. ``seconds``: how long an answer may take. */
export async function ask(path, { method = "GET", body, signal, seconds = 15 } = {}) {
  const limits = [AbortSignal.timeout(seconds * 1000), ...(signal ? [signal] : [])];
  const headers = { Authorization: `Bearer ${token.get() ?? ""}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(`/api/v1/${path}`, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.any(limits),
      cache: "no-store",
    });
  } catch {
    throw new Refused(0, "The coordinator does not answer.");
  }
  if (answer.ok) return answer;
  throw new Refused(answer.status, await reason(answer));
}

async function reason(answer) {
  const said = await answer.json().catch(() => null);
  const detail = said?.detail;
  if (Array.isArray(detail)) return detail.map((fault) => `${fault.loc.slice(1).join(".")}: ${fault.msg}`).join("; ");
  return typeof detail === "string" ? detail : `The coordinator answered with ${answer.status}.`;
}

export async function get(path, options) {
  const answer = await ask(path, options);
  try {
    return await answer.json();
  } catch {
    throw new Refused(0, "The coordinator's answer broke off.");
  }
}

export async function post(path, body) {
  return (await ask(path, { method: "POST", body })).json();
}
