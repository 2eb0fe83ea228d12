// The output of an attempt, followed to its end.

import { Refused, ask } from "./api.js";
import { say } from "./dom.js";
import { number } from "./format.js";

const KEPT = 200_000; // characters on the page; the command line has all of it
const WAIT = 20; // seconds that a question waits for more
const LATE = 10_000; // milliseconds that the output of an ended attempt may take to arrive

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

export class Output {
  constructor(section, info) {
    this.attempt = `${info.id}.${info.attempt}`;
    this.path = `tasks/${info.id}/logs?attempt=${info.attempt}`;
    this.note = section.querySelector(".note");
    this.box = section.querySelector("pre");
    this.stopped = new AbortController();
    this.text = "";
    // Of a long output that is complete, only the end is read at all.
    this.offset = this.skipped = info.ended === null ? 0 : Math.max(0, info.output - KEPT);
    say(this.box, "");
    this.follow();
  }

  stop() {
    this.stopped.abort();
  }

  async follow() {
    const { signal } = this.stopped;
    const decoder = new TextDecoder();
    say(this.note, "following …");
    for (let quiet = performance.now(); !signal.aborted; ) {
      let piece, answer;
      const wait = document.hidden ? 0 : WAIT; // see feed.js
      try {
        answer = await ask(`${this.path}&offset=${this.offset}&wait=${wait}`, { signal, seconds: wait + 10 });
        piece = new Uint8Array(await answer.arrayBuffer());
      } catch (fault) {
        if (signal.aborted) return;
        if (fault instanceof Refused && fault.status >= 400 && fault.status < 429) return say(this.note, fault.message);
        await pause(2000); // the coordinator is away, and will be asked again from where we are
        continue;
      }
      if (signal.aborted) return;
      this.leap(Number(answer.headers.get("X-Start") ?? this.offset) - this.offset);
      this.offset = Number(answer.headers.get("X-Offset"));
      this.add(decoder.decode(piece, { stream: true }));
      if (piece.length) {
        quiet = performance.now();
        continue;
      }
      const late = answer.headers.get("X-Over") === "1" && performance.now() - quiet > LATE;
      if (answer.headers.get("X-Complete") === "1" || late) return this.end();
      if (answer.headers.get("X-Over") === "1" || !wait) await pause(500);
    }
  }

  /** The middle of a very long output is not kept anywhere. */
  leap(bytes) {
    if (bytes > 0) this.add(`\n… ${number(bytes)} bytes were not kept …\n`);
  }

  add(text) {
    if (!text) return;
    const atEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
    this.text += text;
    if (this.text.length > KEPT) {
      this.skipped += this.text.length - KEPT;
      this.text = this.text.slice(-KEPT);
    }
    say(this.box, readable(this.text));
    if (atEnd) this.box.scrollTop = this.box.scrollHeight;
  }

  end() {
    const cut = this.skipped ? `the first ${number(this.skipped)} characters are left out` : "";
    say(this.note, this.text ? cut : "It wrote nothing.");
  }
}

/** Without the signs that colour a terminal, and with lines that were written over as they were last. Takes time that
 * grows with the text alone: a pattern for the whole of it would look at a long line from each of its places. */
export function readable(text) {
  return text.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, "").split("\n").map(lastWritten).join("\n");
}

/** What is left of a line after each carriage return but those at its end. */
function lastWritten(line) {
  let end = line.length;
  while (end > 0 && line[end - 1] === "\r") end--;
  return line.slice(end > 0 ? line.lastIndexOf("\r", end - 1) + 1 : 0, end);
}
