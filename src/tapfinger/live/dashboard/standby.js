// A coordinator that stands by only reads. Whoever looks at it is taken to the one that leads, or is told where it is.

import { token } from "./api.js";
import { byId, h } from "./dom.js";

const KEY = "tapfinger-came";
const SETTLE = 15; // seconds after a move in which no other follows: two that name each other would take turns for ever

const STANDS_BY = "This coordinator stands by and cannot change anything. ";
const LOCAL = ["localhost", "127.0.0.1", "[::1]"];

function address(text) {
  try {
    const found = new URL(text);
    return ["http:", "https:"].includes(found.protocol) ? found : null;
  } catch {
    return null;
  }
}

/** Note where a link says that we come from; what it says is not believed any further than to be shown. */
export function noteOrigin(given) {
  const from = address(given)?.origin;
  if (from && from !== location.origin) sessionStorage.setItem(KEY, JSON.stringify({ from, at: Date.now() }));
}

function came() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}

/** What to do about a leader at this address: "go" by itself, "offer" a link, or only "name" it. */
export function advice(leader, here, seconds) {
  const there = address(leader);
  if (!there || there.origin === here.origin) return "name";
  if (here.protocol === "https:" && there.protocol !== "https:") return "name"; // the token must not travel openly
  // An address of the coordinator's own machine is none of ours, if we are elsewhere.
  if (LOCAL.includes(there.hostname) && !LOCAL.includes(here.hostname)) return "offer";
  return seconds < SETTLE ? "offer" : "go";
}

/** Show, or act on, what this coordinator says of itself. */
export function follow(role, leader) {
  if (role !== "standby") return show();
  const what = advice(leader, location, (Date.now() - (came().at ?? 0)) / 1000);
  if (what === "name") return show(STANDS_BY, leader ? `The leader is at ${leader}.` : "None leads just now.");
  const there = `${address(leader).origin}/#${new URLSearchParams({ token: token.get() ?? "", from: location.origin })}`;
  // Nothing that someone has begun is thrown away.
  if (what === "go" && !document.querySelector("dialog[open]")) return location.replace(there);
  show(STANDS_BY, h("a", { href: there }, `Go to the leader at ${address(leader).origin}`));
}

/** The coordinator is away: whoever came from another may look there. */
export function wayBack() {
  const { from } = came();
  // Without the token, which whoever made up a link must not get; the page there has it, if we really come from it.
  if (from) show("Another coordinator may lead by now: ", h("a", { href: `${from}/`, rel: "noreferrer" }, from));
}

function show(...parts) {
  const box = byId("standby");
  const text = parts.map((part) => part.textContent ?? part).join("");
  if (box.hidden && !parts.length) return;
  box.hidden = !parts.length;
  if (box.textContent !== text) box.replaceChildren(...parts);
}
