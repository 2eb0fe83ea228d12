// Numbers, times and sizes as people read them, in the viewer's locale.

const plain = new Intl.NumberFormat(undefined, { maximumFractionDigits: 2 });
const tenths = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const clockTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const shortTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const dayAndTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;

export const number = (value) => plain.format(value);

/** Seconds as at most two units; tenths where they matter. */
export function duration(seconds, exact = false) {
  const s = Math.max(0, seconds);
  if (s < 10 && exact) return `${tenths.format(s)} s`;
  const whole = exact ? Math.round(s) : Math.floor(s);
  if (whole < MINUTE) return `${whole} s`;
  if (whole < HOUR) return both(whole, MINUTE, "min", 1, "s");
  if (whole < DAY) return both(whole, HOUR, "h", MINUTE, "min");
  return both(whole, DAY, "d", HOUR, "h");
}

function both(seconds, large, largeName, small, smallName) {
  const rest = Math.floor((seconds % large) / small);
  const first = `${plain.format(Math.floor(seconds / large))} ${largeName}`;
  return rest ? `${first} ${rest} ${smallName}` : first;
}

/** A time of day; with the date if that is another day's. */
export function time(at) {
  const date = new Date(at * 1000);
  return date.toDateString() === new Date().toDateString() ? clockTime.format(date) : dayAndTime.format(date);
}

export const hourAndMinute = (at) => shortTime.format(new Date(at * 1000));
export const moment = (at) => dayAndTime.format(new Date(at * 1000));

/** Amounts by resource: "2 cpu, 1 gpu". */
export function size(amounts) {
  const parts = Object.entries(amounts ?? {}).filter(([, amount]) => amount > 0);
  return parts.map(([name, amount]) => `${plain.format(amount)} ${name}`).join(", ") || "nothing";
}

/** Numbers that a task has reported of itself: "loss 0.31, val_loss 0.4". */
export const numbers = (metrics) =>
  Object.entries(metrics ?? {}).map(([name, value]) => `${name} ${Number(value.toPrecision(3))}`).join(", ");

export const percent = (share) => `${Math.round(100 * share)} %`;
export const plural = (count, one, many) => `${plain.format(count)} ${count === 1 ? one : many}`;
