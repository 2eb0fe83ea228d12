// What is known of the site, kept up to date by one long question after the other.

import { Refused, get } from "./api.js";

const ATTEMPTS = 2000; // as many as the coordinator keeps
const POINTS = 1800;
const STEP = 2; // seconds between points
const EVENTS = 300;
const PATIENCE = 20; // seconds that a question waits for news
const CALM = 500; // milliseconds between questions, however much happens
const ASLEEP = 5000; // the same while nobody looks

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

export class Feed {
  /** ``on.change``: something is new; ``on.link``: "live", "lost" with seconds to the next try and a reason, or
   * "broken"; ``on.refused``: who looks may not. */
  constructor(on) {
    this.on = on;
    this.stopped = new AbortController();
    this.ahead = 0; // seconds that the coordinator's clock is ahead of ours
    this.clear();
  }

  clear() {
    this.seq = 0;
    this.heard = 0; // how often running tasks have told how far they are
    this.role = ""; // of the coordinator that answers: "leader" or "standby"
    this.leader = ""; // address of the one that leads, if it is known
    this.counts = {};
    this.clusters = [];
    this.attempts = new Map(); // by "task.attempt", in the order of their grants
    this.points = []; // [time, waiting, running]
    this.events = []; // latest last
    this.lanes = new Map(); // by cluster: the last attempt in each lane of the chart
  }

  now() {
    return Date.now() / 1000 + this.ahead;
  }

  stop() {
    this.stopped.abort();
  }

  async run() {
    const { signal } = this.stopped;
    for (let failures = 0; !signal.aborted; ) {
      // After a failure, whether someone answers matters more than whether there is news. And a tab that nobody sees
      // holds no connection: browsers have few, for all tabs together.
      const wait = failures || !this.seq || document.hidden ? 0 : PATIENCE;
      try {
        const news = await get(`overview?after=${this.seq}&heard=${this.heard}&wait=${wait}`, { signal, seconds: wait + 10 });
        if (signal.aborted) return;
        failures = 0;
        this.take(news);
        this.on.link("live");
        this.on.change(news.events);
        await pause(document.hidden ? ASLEEP : CALM);
      } catch (fault) {
        if (signal.aborted) return;
        if (fault.status === 401 || fault.status === 403) return this.on.refused(fault.message);
        if (!(fault instanceof Refused)) {
          this.on.link("broken");
          throw fault;
        }
        const seconds = Math.min(8, 0.5 * 2 ** failures++);
        this.on.link("lost", seconds, fault.status ? fault.message : "");
        await pause(seconds * 1000 * (0.8 + 0.4 * Math.random()));
      }
    }
  }

  take(news) {
    if (news.whole) this.clear();
    this.seq = news.seq;
    this.ahead = news.now - Date.now() / 1000;
    this.role = news.role;
    this.leader = news.leader;
    this.faults = news.faults ?? {};
    this.counts = news.counts;
    this.clusters = news.clusters;
    this.at = news.now; // when they were like that
    for (const attempt of news.runs) this.takeAttempt(attempt);
    this.heard = news.heard ?? 0;
    for (const { task, attempt, progress, metrics } of news.progress ?? []) {
      const known = this.attempts.get(`${task}.${attempt}`);
      if (known) Object.assign(known, { progress, metrics });
    }
    for (const point of news.points) {
      const last = this.points.at(-1);
      if (last && Math.floor(last[0] / STEP) === Math.floor(point[0] / STEP)) this.points.pop();
      this.points.push(point);
    }
    this.points.splice(0, this.points.length - POINTS);
    this.events.push(...news.events);
    this.events.splice(0, this.events.length - EVENTS);
    this.forgetOld();
  }

  takeAttempt(news) {
    const key = `${news.task}.${news.attempt}`;
    const known = this.attempts.get(key);
    if (known) Object.assign(known, news);
    else this.attempts.set(key, { ...news, key, lane: this.lane(news) });
  }

  /** The lowest lane of its cluster that is free. It stays there, so that bars do not jump. */
  lane(news) {
    if (!this.lanes.has(news.cluster)) this.lanes.set(news.cluster, []);
    const lanes = this.lanes.get(news.cluster);
    const free = lanes.findIndex((key) => {
      const last = this.attempts.get(key);
      return !last || (last.ended !== null && last.ended <= news.granted);
    });
    const lane = free < 0 ? lanes.length : free;
    lanes[lane] = `${news.task}.${news.attempt}`;
    return lane;
  }

  forgetOld() {
    for (const [key, attempt] of this.attempts) {
      if (this.attempts.size <= ATTEMPTS) return;
      if (attempt.ended !== null) this.attempts.delete(key);
    }
  }

  running() {
    return [...this.attempts.values()].filter((attempt) => attempt.ended === null);
  }

  ended() {
    return [...this.attempts.values()].filter((attempt) => attempt.ended !== null);
  }
}
