// Recent placements: a band per cluster, a bar per attempt from its grant to its end, coloured by task type.

import { BOLD, FONT, colour, inkOn, line, nothing, pointing, prepare, timeAxis, tip, typeColour } from "./canvas.js";
import { byId, say } from "./dom.js";
import { duration, plural, size, time } from "./format.js";

const AXIS = 22; // pixels below the bands
const GAP = 10; // between bands
const TALLEST = 420; // of all lanes together, as long as a lane stays visible
const NARROW = 560; // below it, names stand above their bands
const NAME = 18; // height of such a name
const ROOM = 64; // width of a bar that holds more than a number

export class Gantt {
  constructor(feed, open) {
    this.feed = feed;
    this.canvas = byId("gantt");
    this.bars = [];
    this.chosen = null; // by keyboard
    pointing(this.canvas, (x, y) => this.find(x, y), (bar) => this.lines(bar.attempt), (bar) => open(bar.attempt.task));
    this.canvas.addEventListener("keydown", (event) => this.press(event, open));
    this.canvas.addEventListener("blur", () => (this.chosen = null));
  }

  draw(minutes) {
    const now = this.feed.now();
    const from = now - 60 * minutes;
    const shown = [...this.feed.attempts.values()].filter((a) => (a.ended ?? now) >= from);
    const on = Map.groupBy(shown, (attempt) => attempt.cluster);
    const bands = this.feed.clusters.map(({ name }) => ({ name, attempts: on.get(name) ?? [] }));
    for (const band of bands) band.lanes = 1 + Math.max(0, ...band.attempts.map((a) => a.lane));
    const lanes = bands.reduce((sum, band) => sum + band.lanes, 0);
    const lane = Math.max(3, Math.min(18, Math.floor(TALLEST / Math.max(1, lanes))));
    const wide = this.canvas.parentElement.clientWidth >= NARROW;
    const heights = bands.map((band) => Math.max(wide ? 18 : 6, band.lanes * lane) + (wide ? 0 : NAME));
    const height = heights.reduce((sum, each) => sum + each + GAP, 4) + AXIS;
    const { pen, width } = prepare(this.canvas, height);
    pen.font = BOLD;
    const names = wide ? Math.min(140, 14 + Math.max(0, ...bands.map((band) => pen.measureText(band.name).width))) : 0;
    const box = { left: names, right: width - 1, top: 2, bottom: height - AXIS };
    pen.font = FONT;
    const x = timeAxis(pen, box, now, minutes);
    this.bars = [];
    let top = 4;
    bands.forEach((band, n) => {
      this.name(pen, band.name, wide, box, top, heights[n]);
      const first = top + (wide ? 0 : NAME);
      for (const attempt of band.attempts) this.bar(pen, attempt, x, box, first + attempt.lane * lane, lane, now);
      top += heights[n] + GAP;
      if (n + 1 < bands.length) line(pen, colour("axis"), 0, top - GAP / 2 + 0.5, box.right, top - GAP / 2 + 0.5);
    });
    if (!shown.length) nothing(pen, box, `No placements in the last ${minutes} minutes`);
    this.describe(shown, minutes);
  }

  name(pen, text, wide, box, top, height) {
    pen.fillStyle = colour("ink");
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.font = BOLD;
    pen.fillText(text, 0, wide ? top + height / 2 : top + NAME / 2 - 1, wide ? box.left - 8 : box.right);
    pen.font = FONT;
  }

  bar(pen, attempt, x, box, top, lane, now) {
    const left = Math.max(box.left, x(attempt.granted));
    // One pixel short, so that neighbours of one type are seen as two.
    const right = Math.max(left + 2, Math.min(box.right, x(attempt.ended ?? now) - (attempt.ended === null ? 0 : 1)));
    const height = lane > 5 ? lane - 2 : lane - 0.5;
    const fill = typeColour(attempt.type);
    const lost = attempt.result !== null && attempt.result !== "finished";
    pen.globalAlpha = lost ? 0.45 : 1;
    pen.fillStyle = fill;
    rounded(pen, left, top, right - left, height, attempt.ended === null);
    pen.globalAlpha = 1;
    if (lost) {
      pen.fillStyle = colour("bad");
      pen.fillRect(right - 3, top, 3, height);
    }
    if (height >= 11 && right - left > 26) {
      pen.save();
      pen.beginPath();
      pen.rect(left, top, right - left - 4, height);
      pen.clip();
      pen.fillStyle = lost ? colour("ink") : inkOn(fill);
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      const text = right - left < ROOM ? String(attempt.task) : `${attempt.task} ${attempt.label}`;
      pen.fillText(text, left + 5, top + height / 2 + 0.5);
      pen.restore();
    }
    const bar = { attempt, left, right, top, bottom: top + lane };
    this.bars.push(bar);
    if (attempt.key === this.chosen) {
      pen.strokeStyle = colour("ink");
      pen.lineWidth = 2;
      pen.strokeRect(left - 1, top - 1, right - left + 2, height + 2);
      pen.lineWidth = 1;
    }
  }

  find(x, y) {
    // A bar of a short task is thin; two pixels beside it still mean it.
    return this.bars.findLast((bar) => x >= bar.left - 2 && x <= bar.right + 2 && y >= bar.top && y < bar.bottom);
  }

  lines(attempt) {
    const now = this.feed.now();
    const began = attempt.started ?? attempt.granted;
    return [
      `Task ${attempt.task}: ${attempt.label}`,
      `${attempt.type} on ${attempt.cluster}, ${size(attempt.size)}`,
      `waited ${duration(attempt.granted - attempt.submitted, true)}, since ${time(attempt.granted)}`,
      attempt.ended === null
        ? `running for ${duration(now - began)}`
        : `${attempt.result} after ${duration(attempt.ended - began, true)}`,
      ...(attempt.attempt > 1 ? [`attempt ${attempt.attempt}`] : []),
    ];
  }

  press(event, open) {
    const keys = this.bars.map((bar) => bar.attempt.key);
    let place = keys.indexOf(this.chosen);
    if (event.key === "ArrowRight") place = Math.min(keys.length - 1, place + 1);
    else if (event.key === "ArrowLeft") place = place < 0 ? keys.length - 1 : Math.max(0, place - 1);
    else if (event.key === "Enter" && place >= 0) return open(this.bars[place].attempt.task);
    else if (event.key === "Escape") return tip(null);
    else return;
    event.preventDefault();
    const bar = this.bars[place];
    if (!bar) return;
    this.chosen = bar.attempt.key;
    const told = this.lines(bar.attempt);
    say(byId("gantt-said"), told.join(". "));
    const corner = this.canvas.getBoundingClientRect();
    tip(told, corner.left + bar.left, corner.top + bar.top);
  }

  describe(shown, minutes) {
    const running = shown.filter((attempt) => attempt.ended === null).length;
    const text =
      `${plural(shown.length, "placement", "placements")} in the last ${minutes} minutes, ${running} of them running. ` +
      "Arrow keys go from one to the next, Enter opens one.";
    if (this.canvas.getAttribute("aria-label") !== text) this.canvas.setAttribute("aria-label", text);
  }
}

/** Round corners where there is room; one that still grows has a straight end. */
function rounded(pen, left, top, width, height, open) {
  const radius = Math.min(3, width / 2, height / 2);
  pen.beginPath();
  pen.roundRect(left, top, width, height, open ? [radius, 0, 0, radius] : radius);
  pen.fill();
}
