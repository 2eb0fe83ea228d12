// Clusters: what each has, who uses it, and whether it is there.

import { Refused, post } from "./api.js";
import { typeColourName } from "./canvas.js";
import { byId, h, keyed, say, tell } from "./dom.js";
import { duration, number, percent, plural, size } from "./format.js";

const STATES = {
  joined: ["●", "takes tasks"],
  drained: ["❚❚", "finishes what it has, takes nothing new"],
  silent: ["▲", "its agent has not been heard of"],
};

/** Stands for what is used by people who are not scheduled here; no task type has such a name. */
const OTHERS = "\u0000others";
const titles = { "": "other tasks", [OTHERS]: "others, not scheduled here" };
const place = (type) => (type in titles ? `~${type}` : typeColourName(type)); // what is of no type comes last

/** The clusters; those with nodes come last, each as an item of its own before its nodes. */
function grouped(clusters) {
  const groups = Map.groupBy(clusters, (cluster) => cluster.part_of ?? "");
  const alone = groups.get("") ?? [];
  groups.delete("");
  return [...alone, ...[...groups].flatMap(([name, nodes]) => [{ name, nodes }, ...nodes])];
}

const heading = ({ name }) => h("li", { class: "whole" }, h("h3", {}, name), h("span", { class: "note" }));

/** What is free of all nodes of a cluster together. */
function total(row, { nodes }) {
  const parts = Object.keys(nodes[0].capacity).map((name) => {
    const [free, capacity] = ["free", "capacity"].map((what) => nodes.reduce((sum, node) => sum + node[what][name], 0));
    return `${number(free)} of ${number(capacity)} ${name}`;
  });
  say(row.querySelector(".note"), `${plural(nodes.length, "node", "nodes")}, free: ${parts.join(", ")}`);
}

const byType = ([a], [b]) => place(a).localeCompare(place(b));

export class Clusters {
  constructor(feed, may) {
    this.feed = feed;
    this.may = may;
  }

  draw() {
    const running = Map.groupBy(this.feed.running(), (attempt) => attempt.cluster);
    keyed(
      byId("clusters"),
      grouped(this.feed.clusters),
      (item) => (item.nodes ? `whole ${item.name}` : item.name),
      (item) => (item.nodes ? heading(item) : this.make(item)),
      (card, item) => (item.nodes ? total(card, item) : this.refresh(card, item, running.get(item.name) ?? [])),
    );
  }

  make(cluster) {
    const bars = Object.keys(cluster.capacity)
      .filter((name) => cluster.capacity[name] > 0)
      .map((name) => h("li", { "data-resource": name },
        h("span", { class: "resource" }, name), h("div", { class: "bar" }), h("span", { class: "amount" })));
    return h("li", { class: "cluster", "data-cluster": cluster.name },
      h("h3", {}, cluster.name, cluster.kind ? h("span", { class: "kind" }, ` ${cluster.kind}`) : null),
      h("span", { class: "state" }),
      h("ul", { class: "bars" }, ...bars),
      h("div", { class: "foot" }, h("span", { class: "note" }), this.may.has("operate") ? this.button(cluster) : null));
  }

  button(cluster) {
    const button = h("button", { type: "button", class: "small drain" });
    button.addEventListener("click", async () => {
      const undo = button.dataset.drained === "true";
      try {
        const answer = await post(`clusters/${encodeURIComponent(cluster.name)}/drain?undo=${undo}`);
        this.feed.clusters = answer.clusters;
        this.draw();
        tell(undo ? `${cluster.name} takes tasks again` : `${cluster.name} takes no new tasks`);
      } catch (fault) {
        if (!(fault instanceof Refused)) throw fault;
        tell(fault.message, true);
      }
    });
    return button;
  }

  refresh(card, cluster, attempts) {
    const state = !cluster.connected ? "silent" : cluster.drained ? "drained" : "joined";
    const [sign, meaning] = STATES[state];
    const badge = card.querySelector(".state");
    const heard = cluster.last_heard == null ? null : cluster.last_heard + this.feed.now() - this.feed.at;
    const ago = state === "silent" && heard !== null ? `, last heard ${duration(heard)} ago` : "";
    say(badge, `${sign} ${state}${ago}${state === "silent" && cluster.drained ? ", drained" : ""}`);
    badge.className = `state ${state}`;
    badge.title = meaning;
    for (const bar of card.querySelectorAll("[data-resource]")) this.fill(bar, cluster, attempts);
    const count = cluster.tasks.length;
    const notes = [count ? `runs ${plural(count, "task", "tasks")}` : "idle"];
    if (cluster.trouble) notes.push(`takes no tasks: ${cluster.trouble}`);
    if (cluster.isolates === false) notes.push("tasks are not isolated");
    if (Object.values(cluster.others ?? {}).some(Boolean)) notes.push(`others use ${size(cluster.others)}`);
    const both = cluster.disagreement;
    if (both) notes.push(`its agent has ${size(both.agent)}, configured are ${size(both.configured)}`);
    say(card.querySelector(".note"), notes.join("; "));
    const button = card.querySelector(".drain");
    if (!button) return;
    button.dataset.drained = String(cluster.drained);
    say(button, cluster.drained ? "Reopen" : "Drain");
    button.setAttribute("aria-label", `${cluster.drained ? "Reopen" : "Drain"} ${cluster.name}`);
  }

  /** One piece per task type, in its colour; what we know no task of is grey. */
  fill(row, cluster, attempts) {
    const name = row.dataset.resource;
    const capacity = cluster.capacity[name];
    const used = capacity - cluster.free[name];
    const pieces = new Map();
    for (const { type, size } of attempts) pieces.set(type, (pieces.get(type) ?? 0) + (size[name] ?? 0));
    const known = [...pieces.values()].reduce((sum, amount) => sum + amount, 0);
    const others = Math.min(cluster.others?.[name] ?? 0, Math.max(0, used - known));
    pieces.set(OTHERS, others);
    pieces.set("", Math.max(0, used - known - others));
    const shown = [...pieces].filter(([, amount]) => amount > 0).sort(byType);
    keyed(row.querySelector(".bar"), shown, ([type]) => type, () => h("div"), (piece, [type, amount]) => {
      piece.style.width = `${(100 * amount) / capacity}%`;
      piece.style.background = type in titles ? "var(--muted)" : `var(--${typeColourName(type)})`;
      piece.title = `${titles[type] ?? type}: ${number(amount)} ${name}`;
    });
    say(row.querySelector(".amount"), `${number(used)} of ${number(capacity)}, ${percent(used / capacity)}`);
    const bar = row.querySelector(".bar");
    bar.setAttribute("role", "meter");
    bar.setAttribute("aria-label", `${name} in use on ${cluster.name}`);
    bar.setAttribute("aria-valuemax", capacity);
    bar.setAttribute("aria-valuenow", used);
  }
}
