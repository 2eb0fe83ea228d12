// One task: what it is, why it is where it is, what it says, and what happened to it.

import { Refused, get, post } from "./api.js";
import { byId, h, keyed, say, tell, twice } from "./dom.js";
import { duration, moment, number, numbers, percent, plural, size, time } from "./format.js";
import { Output } from "./output.js";

const ENDED = new Set(["finished", "failed", "cancelled", "lost"]);
const EXPLAIN_EVERY = 3000; // milliseconds, while it waits: reasons change with what others do

/** Whether this person may cancel a task of that owner. */
export const mayCancel = (me, owner) => me.may.includes("operate") || (me.may.includes("submit") && owner === me.name);

export async function cancel(task) {
  try {
    await post(`tasks/${task}/cancel`);
    tell(`Task ${task} is being cancelled`);
  } catch (fault) {
    if (!(fault instanceof Refused)) throw fault;
    tell(fault.message, true);
  }
}

export class Detail {
  constructor(feed, me) {
    this.feed = feed;
    this.me = me;
    this.dialog = byId("detail");
    this.output = this.info = this.task = null;
    this.explained = 0;
    this.dialog.addEventListener("close", () => this.leave());
    // Outside of the panel means away from it.
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
  }

  close() {
    this.dialog.close();
  }

  leave() {
    this.output?.stop();
    this.output = this.info = this.task = null;
  }

  async open(task) {
    this.leave();
    this.task = task;
    this.build();
    if (!this.dialog.open) this.dialog.showModal();
    await this.refresh();
  }

  build() {
    const part = (id, head, ...inside) => h("section", { id, hidden: true }, h("h3", {}, head), ...inside);
    this.dialog.replaceChildren(
      h("div", { class: "sheet" },
        h("div", { class: "head" },
          h("h2", { id: "detail-head" }, `Task ${this.task}`),
          h("span", { class: "phase" }),
          h("span", { id: "detail-cancel" }),
          h("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => this.close() }, "✕")),
        h("p", { id: "detail-fault", class: "fault", role: "alert" }),
        h("p", { id: "detail-label" }),
        part("detail-why", "Why", h("p", { class: "summary" }), h("ul", { class: "reasons" })),
        part("detail-facts", "Facts", h("dl", {})),
        part("detail-words", "Program and arguments", h("ol", { class: "words" })),
        part("detail-output", "Output", h("p", { class: "note" }), h("pre", { tabindex: "0" })),
        part("detail-history", "History", h("ol", { class: "history" }))),
    );
  }

  part(name) {
    const section = byId(`detail-${name}`);
    section.hidden = false;
    return section;
  }

  /** When there is news of this task. */
  hear(events) {
    if (this.task === null) return;
    const due = performance.now() - this.explained > EXPLAIN_EVERY;
    if (events.some((event) => event.task === this.task)) this.refresh();
    else if (this.info?.phase === "queued" && due) this.explain(this.task);
  }

  /** Time passes. */
  tick() {
    if (!this.info || this.info.started === null || this.info.ended !== null) return;
    const latest = this.feed.attempts.get(`${this.info.id}.${this.info.attempt}`);
    if (typeof latest?.progress === "number") {
      this.info.progress = latest.progress;
      this.info.metrics = latest.metrics;
    }
    this.facts(this.info);
  }

  async refresh() {
    const task = this.task;
    try {
      const info = await get(`tasks/${task}`);
      if (this.task === task) this.fill(info);
    } catch (fault) {
      if (!(fault instanceof Refused)) throw fault;
      if (this.task === task) say(byId("detail-fault"), fault.message);
      return;
    }
    await this.explain(task);
  }

  fill(info) {
    this.info = info;
    say(byId("detail-fault"), "");
    say(byId("detail-label"), info.spec.name);
    const phase = this.dialog.querySelector(".phase");
    const cancelling = info.cancelled && !ENDED.has(info.phase);
    say(phase, cancelling ? "being cancelled" : info.rests > 0 ? `${info.phase}, rests` : info.phase);
    phase.className = `phase ${info.phase}`;
    const place = byId("detail-cancel");
    const can = !ENDED.has(info.phase) && !info.cancelled && mayCancel(this.me, info.owner);
    if (!can) place.replaceChildren();
    else if (!place.firstChild) place.append(twice("Cancel", "Really cancel?", () => cancel(info.id), { class: "bad" }));
    this.facts(info);
    const words = info.spec.argv.map((word) => h("li", {}, h("code", {}, word)));
    const rest = info.redacted ? [h("li", { class: "note" }, `the rest is for ${info.owner} and operators`)] : [];
    this.part("words").querySelector("ol").replaceChildren(...words, ...rest);
    this.part("history").querySelector("ol").replaceChildren(...info.history.map(historyLine));
    if (info.redacted) {
      say(this.part("output").querySelector(".note"), `It is for ${info.owner}, who owns the task, and for operators.`);
    } else if (info.attempt > 0 && this.output?.attempt !== `${info.id}.${info.attempt}`) {
      this.output?.stop();
      this.output = new Output(this.part("output"), info);
    }
  }

  facts(info) {
    const { spec } = info;
    const began = info.started;
    const ran = began === null ? null : (info.ended ?? this.feed.now()) - began;
    const limits = [size(spec.minimum) === "nothing" ? "" : `at least ${size(spec.minimum)}`,
      size(spec.maximum) === "nothing" ? "" : `at most ${size(spec.maximum)}`].filter(Boolean).join(", ");
    const rows = [
      ["Type", spec.type],
      ["Cluster", info.cluster],
      ["Size", info.allocation && size(info.allocation)],
      ["Asked for", limits],
      ["Gets at least", Object.keys(info.least ?? {}).length ? `${size(info.least)}: an attempt ran out with less` : null],
      ["May run on", spec.clusters.length ? spec.clusters.join(", ") : "any cluster"],
      ["Submitted", `${moment(info.submitted)} by ${info.owner}`],
      ["Started", later(began, info.submitted)],
      ["Ended", later(info.ended, info.submitted)],
      [info.ended === null ? "Running for" : "Ran", ran === null ? null : duration(ran, true)],
      ["Progress", typeof info.progress === "number" ? percent(info.progress) : null],
      ["Reported", numbers(info.metrics)],
      ["Incomplete", info.incomplete ? "it ended before it had reported all done" : null],
      ["Warnings", (info.warnings ?? []).join("\n")],
      ["Attempts", info.attempt ? `${number(info.attempt)}; ${plural(spec.retries, "retry", "retries")} allowed` : null],
      ["Time limit", spec.time_limit === null ? null : duration(spec.time_limit, true)],
      ["Exit code", info.code === null ? null : String(info.code)],
      ["Reason", info.reason],
      ["Directory", spec.cwd],
      ["Files", info.results ? `${info.results}, until ${moment(info.results_until)}; tapfinger get ${info.id} fetches them` : null],
      ["Secrets", (spec.secrets ?? []).join(", ")],
      ["Environment", Object.entries(spec.env).map(([name, value]) => `${name}=${value}`).join("\n")],
      ["Without coordinator", spec.on_disconnect === "keep" ? "runs on" : null],
      ["Key", spec.key],
    ].filter(([, value]) => value);
    const list = this.part("facts").querySelector("dl");
    keyed(list, rows, ([name]) => name, ([name]) => h("div", {}, h("dt", {}, name), h("dd")), (pair, [, value]) => {
      say(pair.lastChild, value);
    });
  }

  /** Why it waits, or why it got its place. Coordinators that cannot say it are silent about it. */
  async explain(task) {
    this.explained = performance.now();
    let why;
    try {
      why = await get(`tasks/${task}/explain`);
    } catch (fault) {
      if (!(fault instanceof Refused)) throw fault;
      return;
    }
    if (this.task !== task) return;
    const section = this.part("why");
    const estimate = typeof why.estimate?.seconds === "number"
      ? ` It should start in about ${duration(why.estimate.seconds)}${there(why.estimate)} (${why.estimate.how}).` : "";
    say(section.querySelector(".summary"), `${why.summary}${estimate}`);
    const reasons = why.clusters.map((each) => {
      const odds = typeof each.probability === "number" ? ` (probability ${percent(each.probability)})` : "";
      return h("li", {}, h("strong", {}, where(each)), ` ${each.text}`, h("span", { class: "note" }, odds));
    });
    if (why.placement) reasons.unshift(h("li", {}, h("strong", {}, where(why.placement)), ` ${why.placement.text}`));
    const others = (why.overtaken_by ?? []).map((id) => `#${id}`).join(", ");
    if (others) reasons.push(h("li", {}, `Overtaken by ${others}.`));
    section.querySelector("ul").replaceChildren(...reasons);
  }
}

/** A cluster or node with its kind of hardware: "lab:0 (a100)". */
const where = ({ cluster, kind }) => (kind ? `${cluster} (${kind})` : cluster);
const there = (estimate) => (estimate.cluster ? ` on ${where(estimate)}` : "");

function later(at, submitted) {
  return at === null ? null : `${time(at)}, ${duration(at - submitted, true)} after submission`;
}

function historyLine(line) {
  const parts = [line.cluster ? `on ${line.cluster}` : "", line.attempt ? `attempt ${line.attempt}` : "", line.detail];
  return h("li", {}, h("time", { datetime: new Date(line.at * 1000).toISOString() }, time(line.at)),
    h("span", { class: "kind" }, line.kind), h("span", { class: "more" }, parts.filter(Boolean).join(", ")));
}
