// How fast each task type is believed to be, and how that compares with what was configured.

import { Refused, get } from "./api.js";
import { typeColourName } from "./canvas.js";
import { byId, h, keyed, say } from "./dom.js";
import { duration, number, percent, size, time } from "./format.js";

const EVERY = 5000; // milliseconds between questions

export class Profiles {
  constructor() {
    this.asked = -Infinity;
    this.rows = [];
  }

  /** As time passes; asks no more often than every so often. */
  async refresh() {
    if (performance.now() - this.asked < EVERY) return;
    this.asked = performance.now();
    try {
      const { learn, types } = await get("profiles");
      this.rows = types;
      say(byId("profiles-note"), learn ? "" : "schedulers are told what is configured (live.learn)");
    } catch (fault) {
      if (!(fault instanceof Refused)) throw fault; // the feed tells of lost connections
    }
    this.draw();
  }

  draw() {
    const make = (row) => h("tr", { "data-type": row.name },
      h("th", { scope: "row", class: "mark" }, row.name), ...Array.from({ length: 6 }, () => h("td")));
    keyed(byId("profiles"), this.rows, (row) => row.name, make, (line, row) => {
      line.firstChild.style.setProperty("--mark", `var(--${typeColourName(row.name)})`);
      const cells = [
        number(row.runs),
        size(row.usual),
        duration(row.seconds, true),
        duration(row.configured_seconds, true),
        `± ${percent(Math.expm1(row.doubt))}`,
        row.drift ? `× ${number(row.drift.factor)} since ${time(row.drift.since)}` : "none",
      ];
      cells.forEach((text, n) => say(line.children[n + 1], text));
      line.classList.toggle("drifted", row.drift !== null);
    });
  }
}
