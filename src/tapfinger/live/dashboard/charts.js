// How long tasks took, and how many there were.

import { amountAxis, colour, nothing, pointing, prepare, steps, timeAxis, typeColour } from "./canvas.js";
import { byId } from "./dom.js";
import { duration, number, plural, size, time } from "./format.js";

const HEIGHT = 220;
const MEAN_OF = 20;
const UNITS = [
  [1, "s"],
  [60, "min"],
  [3600, "h"],
];

const frame = (width) => ({ left: 40, right: width - 1, top: 24, bottom: HEIGHT - 22 });

function describe(canvas, text) {
  if (canvas.getAttribute("aria-label") !== text) canvas.setAttribute("aria-label", text);
}

/** Completion times of finished tasks, in the order of their ends. */
export function finished(feed) {
  const ends = feed.ended().filter((attempt) => attempt.result === "finished");
  return ends.sort((a, b) => a.ended - b.ended);
}

export class Completion {
  constructor(feed, open) {
    this.feed = feed;
    this.canvas = byId("completion");
    this.dots = [];
    pointing(this.canvas, (x, y) => this.find(x, y), (dot) => this.lines(dot.attempt), (dot) => open(dot.attempt.task));
  }

  draw(minutes) {
    const { pen, width } = prepare(this.canvas, HEIGHT);
    const box = frame(width);
    const now = this.feed.now();
    const all = finished(this.feed).map((a) => ({ attempt: a, at: a.ended, took: a.ended - a.submitted }));
    all.forEach((dot, n) => {
      const last = all.slice(Math.max(0, n + 1 - MEAN_OF), n + 1);
      dot.mean = last.reduce((sum, each) => sum + each.took, 0) / last.length;
    });
    const shown = all.filter((dot) => dot.at >= now - 60 * minutes);
    const longest = Math.max(1, ...shown.map((dot) => dot.took));
    const [unit, name] = UNITS.findLast(([seconds]) => longest >= 3 * seconds) ?? UNITS[0];
    const step = steps(longest / unit, 4);
    const top = Math.ceil((longest / unit / step) * 1.02) * step;
    const x = timeAxis(pen, box, now, minutes);
    const y = amountAxis(pen, box, top, step, number, `${name}, from submission to end`);
    this.dots = [];
    for (const dot of shown) {
      const place = { x: x(dot.at), y: y(dot.took / unit), attempt: dot.attempt };
      pen.fillStyle = typeColour(dot.attempt.type);
      pen.globalAlpha = 0.85;
      pen.beginPath();
      pen.arc(place.x, place.y, 3, 0, 2 * Math.PI);
      pen.fill();
      this.dots.push(place);
    }
    pen.globalAlpha = 1;
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 1.5;
    pen.beginPath();
    for (const dot of shown) pen.lineTo(x(dot.at), y(dot.mean / unit));
    pen.stroke();
    if (!shown.length) nothing(pen, box, `Nothing finished in the last ${minutes} minutes`);
    const mean = shown.length ? `, on average in ${duration(average(shown.map((d) => d.took)), true)}` : "";
    describe(this.canvas, `${plural(shown.length, "task", "tasks")} finished in the last ${minutes} minutes${mean}.`);
  }

  find(x, y) {
    return this.dots.findLast((dot) => (dot.x - x) ** 2 + (dot.y - y) ** 2 <= 49);
  }

  lines(attempt) {
    const ran = attempt.ended - (attempt.started ?? attempt.granted);
    return [
      `Task ${attempt.task}: ${attempt.label}`,
      `${attempt.type} on ${attempt.cluster}, ${size(attempt.size)}`,
      `took ${duration(attempt.ended - attempt.submitted, true)}, of which it ran ${duration(ran, true)}`,
      `finished ${time(attempt.ended)}`,
    ];
  }
}

export const average = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

export class Accumulation {
  constructor(feed) {
    this.feed = feed;
    this.canvas = byId("accumulation");
    this.shown = null;
    pointing(this.canvas, (x) => this.find(x), (point) => this.lines(point));
  }

  draw(minutes) {
    const { pen, width } = prepare(this.canvas, HEIGHT);
    const box = frame(width);
    const now = this.feed.now();
    const { waiting = 0, running = 0 } = this.feed.counts;
    const points = [...this.within(now - 60 * minutes), [now, waiting, running]];
    const most = Math.max(4, ...points.map(([, w, r]) => w + r));
    const step = Math.max(1, steps(most, 4));
    const x = timeAxis(pen, box, now, minutes);
    const y = amountAxis(pen, box, Math.ceil(most / step) * step, step, number, "tasks");
    this.area(pen, points, x, (p) => y(p[2]), () => y(0), colour("running"));
    this.area(pen, points, x, (p) => y(p[1] + p[2]), (p) => y(p[2]), colour("waiting"));
    this.shown = { points, from: now - 60 * minutes, now, box };
    describe(this.canvas, `Now ${number(waiting)} waiting and ${number(running)} running; in the last ${minutes} ` +
      `minutes at most ${number(Math.max(...points.map(([, w, r]) => w + r)))} together.`);
  }

  /** Points since then, beginning with how it was then. */
  within(from) {
    const { points } = this.feed;
    const first = points.findIndex(([at]) => at > from);
    const rest = first < 0 ? [] : points.slice(first);
    const before = first < 0 ? points.at(-1) : points[first - 1];
    return before ? [[from, before[1], before[2]], ...rest] : rest;
  }

  area(pen, points, x, upper, lower, fill) {
    pen.fillStyle = fill;
    pen.beginPath();
    points.forEach((point, n) => {
      pen.lineTo(x(point[0]), upper(points[Math.max(0, n - 1)])); // it stayed as it was until then
      pen.lineTo(x(point[0]), upper(point));
    });
    for (let n = points.length - 1; n >= 0; n--) {
      pen.lineTo(x(points[n][0]), lower(points[n]));
      pen.lineTo(x(points[n][0]), lower(points[Math.max(0, n - 1)]));
    }
    pen.fill();
  }

  find(x) {
    if (!this.shown) return null;
    const { points, from, now, box } = this.shown;
    const at = from + ((x - box.left) / (box.right - box.left)) * (now - from);
    return points.findLast((point) => point[0] <= at);
  }

  lines([at, waiting, running]) {
    return [time(at), `${number(running)} running`, `${number(waiting)} waiting`];
  }
}
