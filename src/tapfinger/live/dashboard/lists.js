// Lists: tasks that run or have ended, the queue with its reasons, and what happened.

import { Refused, get } from "./api.js";
import { typeColourName } from "./canvas.js";
import { byId, h, keyed, say } from "./dom.js";
import { duration, number, numbers, percent, plural, size, time } from "./format.js";

const SHOWN = 100; // rows, until someone asks for all
const QUEUE_EVERY = 2000; // milliseconds
const LATEST = 50; // rows of a queue that cannot be asked for in order

/** A row that opens a task; the parts are filled in by whoever made it. */
function row(task, open, more) {
  return h("li", { class: "task", "data-task": task },
    h("button", { type: "button", class: "open", onclick: () => open(task) },
      h("span", { class: "title" }), h("span", { class: "sub" })),
    h("span", { class: "right" }), more);
}

function fill(element, title, sub, right, type) {
  say(element.querySelector(".title"), title);
  say(element.querySelector(".sub"), sub);
  say(element.querySelector(".right"), right);
  element.style.borderLeftColor = type ? `var(--${typeColourName(type)})` : "transparent";
}

function nothingYet(list, text, empty) {
  list.dataset.empty = empty ? text : "";
}

export class Tasks {
  constructor(feed, open, cancelButton) {
    this.feed = feed;
    this.open = open;
    this.cancelButton = cancelButton;
    this.most = SHOWN;
    this.which = "running";
  }

  show(which) {
    this.which = which;
    this.most = SHOWN;
    byId("tasks").replaceChildren();
    byId("tasks").kept = undefined;
    this.draw();
  }

  draw() {
    const list = byId("tasks");
    const running = this.which === "running";
    const found = running ? this.feed.running() : this.feed.ended().sort((a, b) => b.ended - a.ended);
    nothingYet(list, running ? "Nothing runs now." : "Nothing has ended yet.", !found.length);
    const hidden = found.length - this.most;
    const items = hidden > 0 ? [...found.slice(0, this.most), { key: "more", hidden }] : found;
    keyed(list, items, (item) => item.key, (item) => this.make(item), (element, item) => this.refresh(element, item));
  }

  make(item) {
    if (item.hidden) return h("li", {}, h("button", { type: "button", class: "small", onclick: () => this.all() }));
    const element = row(item.task, this.open, item.ended === null ? this.cancelButton(item) : null);
    if (item.ended === null) element.append(h("progress", { max: 1, hidden: true }));
    return element;
  }

  all() {
    this.most = Infinity;
    this.draw();
  }

  refresh(element, item) {
    if (item.hidden) return say(element.firstChild, `Show ${number(item.hidden)} more`);
    const now = this.feed.now();
    const again = item.attempt > 1 ? `, attempt ${item.attempt}` : "";
    const said = numbers(item.metrics);
    const sub = `${item.type} on ${item.cluster}, ${size(item.size)}${again}${said && item.ended === null ? `, ${said}` : ""}`;
    const title = `${item.task} ${item.label}`;
    if (item.ended !== null) {
      const ran = duration(item.ended - (item.started ?? item.granted), true);
      fill(element, title, `${sub}, ${time(item.ended)}`, `${item.result}, ran ${ran}`, item.type);
      element.classList.toggle("failed", item.result !== "finished");
      return;
    }
    const known = typeof item.progress === "number";
    const elapsed = item.started === null ? "starting" : duration(now - item.started);
    fill(element, title, sub, known ? `${percent(item.progress)}, ${elapsed}` : elapsed, item.type);
    const bar = element.querySelector("progress");
    if (!bar) return;
    bar.hidden = !known;
    if (known) bar.value = item.progress;
    bar.setAttribute("aria-label", `Progress of task ${item.task}`);
  }
}

export class Queue {
  constructor(feed, open) {
    this.feed = feed;
    this.open = open;
    this.asked = -Infinity;
    this.items = [];
    this.labels = new Map(); // by task: its label and type
    this.explained = true; // whether this coordinator says why tasks wait
  }

  /** After a change; asks no more often than every so often. */
  async refresh() {
    const waiting = this.feed.counts.waiting ?? 0;
    const latest = this.explained || waiting <= LATEST ? "" : `; the latest ${LATEST}`;
    say(byId("queue-note"), waiting ? plural(waiting, "task waits", "tasks wait") + latest : "");
    if (!waiting) this.items = [];
    else if (performance.now() - this.asked > QUEUE_EVERY) {
      this.asked = performance.now();
      try {
        this.items = await this.ask();
        this.at = this.feed.now();
      } catch (fault) {
        if (!(fault instanceof Refused)) throw fault; // the feed tells of lost connections
      }
    }
    this.draw();
  }

  async ask() {
    if (this.explained) {
      try {
        const { tasks } = await get(`queue?limit=${SHOWN}`);
        await this.learn(tasks.map((item) => item.task));
        return tasks.map((item) => ({ ...item, ...this.labels.get(item.task) }));
      } catch (fault) {
        if (fault.status !== 404) throw fault;
        this.explained = false;
      }
    }
    const { tasks } = await get(`tasks?phase=queued&limit=${LATEST}`);
    return tasks.reverse().map((task) => ({
      task: task.id,
      type: task.spec.type,
      label: task.spec.name || task.spec.argv.join(" "),
      summary: "",
      waited: this.feed.now() - task.submitted,
      estimate: null,
    }));
  }

  /** Labels of those that we have not seen before; of the others, only of those that still wait. */
  async learn(tasks) {
    const known = new Map(tasks.filter((task) => this.labels.has(task)).map((task) => [task, this.labels.get(task)]));
    const asked = tasks.filter((task) => !known.has(task));
    if (asked.length) {
      const { labels } = await get(`labels?${asked.map((task) => `task=${task}`).join("&")}`);
      for (const label of labels) known.set(label.task, label);
    }
    this.labels = known;
  }

  draw() {
    const list = byId("queue");
    nothingYet(list, "Nothing waits.", !this.items.length);
    const since = this.at === undefined ? 0 : this.feed.now() - this.at;
    keyed(list, this.items, (item) => item.task, (item) => row(item.task, this.open), (element, item) => {
      const starts = item.estimate === null || item.estimate === undefined ? "" : startsIn(item.estimate - since);
      const why = item.summary.replace(`Task ${item.task} `, ""); // its number is in the title
      const waits = `waits ${duration(item.waited + since)}${starts}`;
      fill(element, `${item.task} ${item.label ?? ""}`, why || item.type, waits, item.type);
    });
  }
}

const startsIn = (seconds) => (seconds < 1 ? "\nstarts soon" : `\nstarts in about ${duration(seconds)}`);

export class Events {
  constructor(feed, open) {
    this.feed = feed;
    this.open = open;
    byId("filter").addEventListener("input", () => this.draw());
  }

  draw() {
    const wanted = byId("filter").value.trim().toLowerCase();
    const found = this.feed.events.filter((event) => !wanted || text(event).includes(wanted)).reverse();
    const list = byId("events");
    nothingYet(list, wanted ? "No event of the last 300 fits." : "Nothing has happened yet.", !found.length);
    keyed(list, found, (event) => event.seq, (event) => this.make(event), () => {});
  }

  make(event) {
    const task = event.task === null ? null
      : h("button", { type: "button", class: "open", onclick: () => this.open(event.task) }, `#${event.task}`);
    const again = event.attempt > 1 ? `attempt ${event.attempt}` : "";
    const where = event.cluster === null ? "" : `on ${event.cluster}`;
    return h("li", { "data-kind": event.kind },
      h("time", { datetime: new Date(event.at * 1000).toISOString() }, time(event.at)),
      h("span", { class: "kind" }, event.kind), task,
      h("span", { class: "more" }, [where, again, event.detail].filter(Boolean).join(", ")));
  }
}

function text(event) {
  const parts = [event.kind, event.task === null ? "" : `#${event.task}`, event.cluster ?? "", event.detail];
  return parts.join(" ").toLowerCase();
}
