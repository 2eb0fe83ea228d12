// A form that submits tasks. Words are split here and shown before they are sent: there is no shell anywhere.

import { Refused, post } from "./api.js";
import { byId, h, say, tell } from "./dom.js";
import { number, plural, size } from "./format.js";
import { split } from "./words.js";

const EXAMPLE = "python3 train.py --name 'first try'";

export class SubmitForm {
  constructor(site, open) {
    this.site = site;
    this.open = open;
    this.dialog = byId("submit");
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
    this.last = null; // what was sent without an answer, and under which keys
    this.build();
  }

  show() {
    this.dialog.showModal();
    byId("submit-line").focus();
  }

  close() {
    this.dialog.close();
  }

  build() {
    const field = (id, label, input, hint) => {
      input.id = `submit-${id}`;
      return h("div", { class: "field" }, h("label", { for: input.id }, label), input,
        hint ? h("p", { class: "note" }, hint) : null);
    };
    const { task_types: types, clusters, resources } = this.site;
    const amounts = ["minimum", "maximum"].flatMap((bound) => resources.map(({ name, unit }) =>
      field(`${bound}-${name}`, `${bound === "minimum" ? "At least" : "At most"}, ${name}`,
        h("input", { type: "number", min: 0, step: unit, inputmode: "decimal" }))));
    const form = h("form", { class: "sheet", novalidate: true },
      h("div", { class: "head" }, h("h2", { id: "submit-head" }, "Submit a task"),
        h("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => this.close() }, "✕")),
      field("line", "Program and arguments",
        h("textarea", { rows: 2, required: true, spellcheck: "false", autocapitalize: "off", placeholder: EXAMPLE })),
      h("div", { id: "submit-preview", "aria-live": "polite" }),
      h("div", { class: "fields" },
        field("type", "Task type", h("select", {}, ...types.map((t) => h("option", { value: t.name }, t.name)))),
        field("name", "Name", h("input", { maxlength: 200, placeholder: "optional" }))),
      h("p", { class: "note", id: "submit-range" }),
      h("div", { class: "fields" }, ...amounts),
      h("fieldset", {}, h("legend", {}, "Clusters it may run on (none: any)"),
        ...clusters.map((name) => check({ name: "cluster", value: name }, name))),
      h("div", { class: "fields" },
        field("retries", "Retries", h("input", { type: "number", min: 0, max: 1000, value: 0 })),
        field("limit", "Time limit, s", h("input", { type: "number", min: 0.001, step: "any", placeholder: "none" })),
        field("copies", "Copies", h("input", { type: "number", min: 1, max: 1000, value: 1 }))),
      h("details", {}, h("summary", {}, "Directory and environment"),
        field("cwd", "Directory on the cluster", h("input", { placeholder: "a new empty one", spellcheck: "false" })),
        field("env", "Environment",
          h("textarea", { rows: 2, spellcheck: "false", placeholder: "NAME=value, one per line" })),
        check({ id: "submit-keep" }, "Let it run on if its cluster loses the coordinator")),
      h("p", { class: "fault", id: "submit-fault", role: "alert" }),
      h("div", { class: "row end" }, h("button", { type: "button", onclick: () => this.close() }, "Not now"),
        h("button", { class: "primary", id: "submit-send" }, "Submit")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    form.addEventListener("input", () => this.preview());
    this.dialog.replaceChildren(form);
    this.preview();
  }

  preview() {
    const { words, fault, odd } = split(byId("submit-line").value);
    const shown = h("ol", { class: "words" }, ...words.map((word) => h("li", {}, h("code", {}, word))));
    const count = h("p", { class: "note" }, `${plural(words.length, "word", "words")}, passed as they are:`);
    const hints = [fault, odd.length && `No shell reads this: ${odd.join(" ")} will reach the program as written.`];
    byId("submit-preview").replaceChildren(
      ...(words.length ? [count, shown] : []),
      ...hints.filter(Boolean).map((text) => h("p", { class: text === fault ? "fault" : "hint" }, text)));
    const type = this.site.task_types.find((t) => t.name === byId("submit-type").value);
    say(byId("submit-range"), type ? `${type.name} gets from ${size(type.minimum)} to ${size(type.maximum)}.` : "");
    for (const { name } of this.site.resources) {
      byId(`submit-minimum-${name}`).placeholder = number(type?.minimum[name] ?? 0);
      byId(`submit-maximum-${name}`).placeholder = number(type?.maximum[name] ?? 0);
    }
  }

  /** The task as the form describes it; throws an Error that says what is wrong. */
  spec() {
    const { words, fault } = split(byId("submit-line").value);
    if (fault) throw new Error(fault);
    if (!words.length) throw new Error("Name a program to run.");
    const given = (bound) => Object.fromEntries(this.site.resources
      .map(({ name }) => [name, amount(`submit-${bound}-${name}`)]).filter(([, value]) => value !== null));
    return {
      argv: words,
      type: byId("submit-type").value,
      name: byId("submit-name").value.trim(),
      minimum: given("minimum"),
      maximum: given("maximum"),
      clusters: [...this.dialog.querySelectorAll("[name=cluster]:checked")].map((box) => box.value),
      retries: amount("submit-retries") ?? 0,
      time_limit: amount("submit-limit"),
      cwd: byId("submit-cwd").value.trim() || null,
      env: environment(byId("submit-env").value),
      on_disconnect: byId("submit-keep").checked ? "keep" : "stop",
    };
  }

  async send() {
    const button = byId("submit-send");
    const complain = (text) => say(byId("submit-fault"), text);
    complain("");
    button.disabled = true;
    try {
      const { ids } = await post("tasks", { tasks: this.keyed(this.spec(), amount("submit-copies") ?? 1) });
      this.last = null;
      this.dialog.close();
      tell(ids.length === 1 ? `Submitted as task ${ids[0]}` : `Submitted as tasks ${ids[0]} to ${ids.at(-1)}`);
      if (ids.length === 1) this.open(ids[0]);
    } catch (fault) {
      if (fault instanceof Refused && fault.status) this.last = null;
      complain(fault.message);
    } finally {
      button.disabled = false;
    }
  }

  /** With keys, so that sending the same again after a lost answer gives the same tasks. */
  keyed(spec, copies) {
    const what = JSON.stringify([spec, copies]);
    if (this.last?.what !== what) this.last = { what, key: random() };
    return Array.from({ length: copies }, (_, n) => ({ ...spec, key: `page-${this.last.key}-${n}` }));
  }
}

const check = (props, text) => h("label", { class: "check" }, h("input", { type: "checkbox", ...props }), text);

const random = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(36)).join("");

function amount(id) {
  const input = byId(id);
  if (!input.validity.valid) throw new Error(`${input.labels[0].textContent}: ${input.validationMessage}`);
  return input.value === "" ? null : Number(input.value);
}

function environment(text) {
  const lines = text.split("\n").map((each) => each.trim()).filter(Boolean);
  return Object.fromEntries(lines.map((each) => {
    const at = each.indexOf("=");
    if (at < 1) throw new Error(`Environment: ${each} must look like NAME=value.`);
    return [each.slice(0, at), each.slice(at + 1)];
  }));
}
