// Brings the parts together: signing in, the board, and when each part is drawn.

import { Refused, get, takeTokenFromAddress, token } from "./api.js";
import { setTypes, typeColourName } from "./canvas.js";
import { Accumulation, Completion, average, finished } from "./charts.js";
import { Clusters } from "./clusters.js";
import { Detail, cancel, mayCancel } from "./detail.js";
import { byId, choice, h, keyed, say, twice } from "./dom.js";
import { Feed } from "./feed.js";
import { duration, number } from "./format.js";
import { Gantt } from "./gantt.js";
import { Events, Queue, Tasks } from "./lists.js";
import { Profiles } from "./profiles.js";
import { follow, noteOrigin, wayBack } from "./standby.js";
import { SubmitForm } from "./submit.js";
import { setUpTheme } from "./theme.js";

const MEAN_OF = 100;
const SMALLEST = 5000; // milliseconds between drawings for those who want little motion

let board = null;
let used = false; // by someone: whoever signs in next gets a new page, without anything of theirs

class Board {
  constructor(me, site) {
    this.feed = new Feed({
      change: (events) => this.change(events),
      link: showLink,
      refused: (why) => signOut(why),
    });
    setTypes(site.task_types.map((type) => type.name));
    keyed(byId("types"), site.task_types, (type) => type.name, (type) => h("li", {}, type.name), (item, type) => {
      item.style.setProperty("--mark", `var(--${typeColourName(type.name)})`);
    });
    this.detail = new Detail(this.feed, me);
    const open = (task) => this.detail.open(task);
    this.charts = [new Gantt(this.feed, open), new Completion(this.feed, open), new Accumulation(this.feed)];
    this.clusters = new Clusters(this.feed, new Set(me.may));
    this.tasks = new Tasks(this.feed, open, (attempt) => cancelButton(me, attempt));
    this.queue = new Queue(this.feed, open);
    this.events = new Events(this.feed, open);
    this.profiles = new Profiles();
    this.minutes = choice(byId("window"), [[5, "5 min"], [15, "15 min"], [60, "60 min"]], 15, () => this.drawCharts());
    choice(byId("which"), [["running", "Running"], ["ended", "Ended"]], "running", (which) => this.tasks.show(which));
    byId("new").hidden = !me.may.includes("submit");
    if (me.may.includes("submit")) this.form = new SubmitForm(site, open);
    this.timer = setInterval(() => this.tick(), 1000);
    this.drawn = 0;
    this.feed.run();
  }

  stop() {
    this.feed.stop();
    clearInterval(this.timer);
    this.detail.dialog.close();
    this.form?.dialog.close();
  }

  change(events) {
    follow(this.feed.role, this.feed.leader);
    showFaults(this.feed.faults);
    this.clusters.draw();
    this.events.draw();
    this.detail.hear(events);
    this.tiles();
    this.moving();
    this.drawCharts();
    byId("board").classList.add("ready");
  }

  /** Time passes. */
  tick() {
    if (document.hidden || !this.feed.seq) return;
    this.moving();
    this.detail.tick();
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!calm || performance.now() - this.drawn > SMALLEST) this.drawCharts();
  }

  moving() {
    this.tasks.draw();
    this.queue.refresh();
    this.profiles.refresh();
  }

  drawCharts() {
    this.drawn = performance.now();
    for (const chart of this.charts) chart.draw(this.minutes());
  }

  tiles() {
    const { counts } = this.feed;
    const lost = (counts.failed ?? 0) + (counts.lost ?? 0);
    const last = finished(this.feed).slice(-MEAN_OF).map((attempt) => attempt.ended - attempt.submitted);
    const mean = last.length ? duration(average(last), true) : "none yet";
    const tiles = [
      ["waiting", "Waiting", number(counts.waiting)],
      ["running", "Running", number(counts.running)],
      ["finished", "Finished", number(counts.finished)],
      ["failed", "Failed or lost", number(lost)],
      ["mean", `Mean completion time${last.length ? `, last ${number(last.length)}` : ""}`, mean],
    ];
    const make = ([key]) => h("div", { "data-tile": key }, h("dt"), h("dd"));
    keyed(byId("tiles"), tiles, ([key]) => key, make, (tile, [, name, value]) => {
      say(tile.firstChild, name);
      say(tile.lastChild, value);
    });
  }
}

function cancelButton(me, attempt) {
  if (!mayCancel(me, attempt.owner)) return null;
  const label = `Cancel task ${attempt.task}`;
  return twice("Cancel", "Sure?", () => cancel(attempt.task), { class: "small bad", "aria-label": label });
}

/** What is wrong with the coordinator, though it goes on. */
function showFaults(faults) {
  const texts = Object.keys(faults).sort().map((name) => `${name}: ${faults[name]}`);
  byId("faults").hidden = !texts.length;
  say(byId("faults"), texts.join(" "));
}

let countdown = null;

function showLink(state, seconds, why) {
  clearInterval(countdown);
  const link = byId("link");
  const lost = byId("lost");
  link.className = state;
  say(link, { live: "● live", lost: "○ away" }[state] ?? "");
  lost.hidden = state !== "lost" && state !== "broken";
  lost.dataset.left = "";
  if (state === "broken") say(lost, "This page has run into a fault. Reload it.");
  if (state !== "lost") return;
  wayBack();
  // The number is not in the text that is read aloud: it would be read again every second.
  say(lost, why ? `${why} Retrying …` : "Connection lost, retrying …");
  const until = performance.now() + 1000 * seconds;
  const count = () => (lost.dataset.left = `${Math.max(0, Math.ceil((until - performance.now()) / 1000))} s`);
  count();
  countdown = setInterval(count, 250);
}

async function signIn() {
  if (used) return location.reload();
  if (!token.get()) return signOut("");
  let me, site;
  try {
    me = await get("me");
    if (!me.may.includes("read")) return signOut(`This token is for ${me.cluster ? `the agent of ${me.cluster}` : me.role}. It cannot look.`);
    site = await get("task-types");
  } catch (fault) {
    if (!(fault instanceof Refused)) throw fault;
    if (fault.status === 401) return signOut("This token is not valid here. It may have been replaced by a newer one.");
    showLink("lost", 2);
    setTimeout(signIn, 2000);
    return;
  }
  byId("sign-in").hidden = true;
  byId("board").hidden = byId("leave").hidden = false;
  say(byId("who"), `${me.name}, ${me.role}`);
  showLink("");
  used = true;
  board = new Board(me, site);
}

function signOut(why) {
  board?.stop();
  board = null;
  token.forget();
  showLink("");
  for (const part of ["board", "leave", "new", "standby"]) byId(part).hidden = true;
  say(byId("who"), "");
  say(byId("sign-in-fault"), why);
  byId("sign-in").hidden = false;
  byId("token").value = "";
  byId("token").focus();
}

byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(byId("token").value.trim());
  signIn();
});
byId("leave").addEventListener("click", () => signOut(""));
byId("new").addEventListener("click", () => board?.form?.show());
byId("find").addEventListener("submit", (event) => {
  event.preventDefault();
  board?.detail.open(Number(byId("find-number").value));
});
addEventListener("hashchange", () => {
  if (!location.hash.includes("token=")) return;
  takeTokenFromAddress(noteOrigin);
  signIn();
});
let resized = null;
addEventListener("resize", () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(() => board?.drawCharts());
});

takeTokenFromAddress(noteOrigin);
setUpTheme(() => board?.drawCharts());
signIn();
