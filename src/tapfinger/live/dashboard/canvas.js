// What all charts share: sharp canvases, colours of the style sheet, axes, and the box that tells about a mark.

import { byId, h } from "./dom.js";
import { hourAndMinute } from "./format.js";

export const FONT = "11px system-ui, sans-serif";
export const BOLD = "600 12px system-ui, sans-serif";
const TYPES = 7; // colours of task types in the style sheet

const known = new Map();
const probe = h("span", { class: "probe", "aria-hidden": "true" });

/** A colour of the style sheet as a canvas takes it, in light and dark. */
export function colour(name) {
  if (!known.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(--${name})`;
    known.set(name, getComputedStyle(probe).color);
  }
  return known.get(name);
}

/** After a change between light and dark. */
export const forgetColours = () => known.clear();

const order = new Map();

/** Task types in the order of the configuration: the same colours for as long as that is the same. */
export function setTypes(names) {
  order.clear();
  names.forEach((name, n) => order.set(name, n));
}

export function typeColourName(type) {
  if (!order.has(type)) order.set(type, order.size);
  return `type-${order.get(type) % TYPES}`;
}

export const typeColour = (type) => colour(typeColourName(type));

/** Black or white, whichever can be read on this colour. */
export function inkOn(rgb) {
  const [r, g, b] = rgb.match(/[\d.]+/g).map(Number);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#000" : "#fff";
}

/** The drawing context of an emptied canvas, in CSS pixels, as wide as its box. */
export function prepare(canvas, height) {
  const width = canvas.parentElement.clientWidth;
  const ratio = window.devicePixelRatio || 1;
  const [w, hgt] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== hgt) {
    canvas.width = w;
    canvas.height = hgt;
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = FONT;
  pen.lineWidth = 1;
  return { pen, width, height };
}

/** Round steps of an axis from 0; ``most``: their largest number. */
export function steps(top, most) {
  const raw = top / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw * 0.999);
  return step;
}

/** Times at the bottom, with fine lines upwards; returns how to place a time. */
export function timeAxis(pen, box, now, minutes) {
  const from = now - 60 * minutes;
  const x = (at) => box.left + ((at - from) / (now - from)) * (box.right - box.left);
  const room = (box.right - box.left) / 64; // labels
  const step = 60 * [1, 2, 3, 5, 10, 15, 20, 30].find((m) => minutes / m <= room);
  pen.textBaseline = "top";
  pen.textAlign = "center";
  for (let at = Math.ceil(from / step) * step; at <= now; at += step) {
    const place = Math.round(x(at)) + 0.5;
    line(pen, colour("line"), place, box.top, place, box.bottom);
    const text = hourAndMinute(at);
    const half = pen.measureText(text).width / 2;
    if (place - half < 0 || place + half > box.right) continue;
    pen.fillStyle = colour("muted");
    pen.fillText(text, place, box.bottom + 5);
  }
  line(pen, colour("axis"), box.left, box.bottom + 0.5, box.right, box.bottom + 0.5);
  return x;
}

/** Amounts at the left, with fine lines; returns how to place one. */
export function amountAxis(pen, box, top, step, label, unit) {
  const y = (value) => box.bottom - (value / top) * (box.bottom - box.top);
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (let value = 0; value <= top * 1.001; value += step) {
    const place = Math.round(y(value)) + 0.5;
    line(pen, colour("line"), box.left, place, box.right, place);
    pen.fillStyle = colour("muted");
    pen.fillText(label(value), box.left - 6, place);
  }
  pen.textAlign = "left";
  pen.textBaseline = "bottom";
  pen.fillText(unit, 0, box.top - 7);
  return y;
}

export function line(pen, stroke, x1, y1, x2, y2) {
  pen.strokeStyle = stroke;
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x2, y2);
  pen.stroke();
}

/** Instead of a chart without marks. */
export function nothing(pen, box, text) {
  pen.fillStyle = colour("muted");
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.font = "13px system-ui, sans-serif";
  pen.fillText(text, (box.left + box.right) / 2, (box.top + box.bottom) / 2);
  pen.font = FONT;
}

/** Tell about a mark beside a point of the window; without lines, be silent. */
export function tip(lines, x, y) {
  const box = byId("tip");
  box.hidden = !lines;
  if (!lines) return;
  box.replaceChildren(...lines.map((text, n) => h(n ? "span" : "strong", {}, text)));
  const left = Math.min(x + 12, document.documentElement.clientWidth - box.offsetWidth - 8);
  const above = y - box.offsetHeight - 12;
  box.style.left = `${Math.max(8, left)}px`;
  box.style.top = `${above > 8 ? above : y + 16}px`;
}

/** Let a pointer ask about marks, and open them if they can be; ``find(x, y)`` gives a mark or nothing. */
export function pointing(canvas, find, lines, open = null) {
  const at = (event) => find(event.offsetX, event.offsetY);
  canvas.addEventListener("pointermove", (event) => {
    const mark = at(event);
    canvas.classList.toggle("on-mark", Boolean(mark && open));
    tip(mark && lines(mark), event.clientX, event.clientY);
  });
  for (const kind of ["pointerleave", "pointercancel", "blur"]) canvas.addEventListener(kind, () => tip(null));
  canvas.addEventListener("click", (event) => {
    const mark = at(event);
    if (!mark || !open) return;
    tip(null);
    open(mark);
  });
}
