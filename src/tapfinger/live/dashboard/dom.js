// Elements. Text from outside only ever becomes text: nothing here, or in any other file, parses HTML.

/** An element: properties by name ("on…" for listeners, "data-…" and "aria-…" as attributes), then children. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Change a text only where it differs: unchanged ones keep the reader's selection. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Make a list show these items: elements are kept by key, made when new, refreshed, and put in order. */
export function keyed(list, items, key, make, refresh) {
  const old = (list.kept ??= new Map());
  const kept = new Map();
  const names = new Set(items.map(key));
  // First, so that those after them need not be moved: whatever is moved loses the keyboard's focus.
  for (const [name, element] of old) if (!names.has(name)) element.remove();
  let place = list.firstElementChild;
  for (const item of items) {
    const name = key(item);
    const element = old.get(name) ?? make(item);
    refresh(element, item);
    if (element === place) place = place.nextElementSibling;
    else list.insertBefore(element, place);
    kept.set(name, element);
  }
  list.kept = kept;
}

/** A row of buttons of which one is chosen; returns a function that tells which. */
export function choice(parent, options, chosen, onChange) {
  let current = chosen;
  const buttons = options.map(([value, label]) =>
    h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, label),
  );
  function choose(value) {
    current = value;
    buttons.forEach((button, n) => button.setAttribute("aria-pressed", String(options[n][0] === value)));
    onChange(value);
  }
  parent.replaceChildren(...buttons);
  return () => current;
}

/** A button that must be pressed twice: what it does cannot be undone. */
export function twice(label, question, act, props = {}) {
  let timer = null;
  const calm = () => {
    clearTimeout(timer);
    timer = null;
    say(button, label);
    button.classList.remove("sure");
  };
  const button = h("button", { type: "button", ...props, onclick: press, onblur: calm }, label);
  function press(event) {
    event.stopPropagation();
    if (timer) {
      calm();
      act();
      return;
    }
    say(button, question);
    button.classList.add("sure");
    timer = setTimeout(calm, 4000);
  }
  return button;
}

/** Tell the reader that something was done, or was not; above everything, panels too. */
export function tell(text, bad = false) {
  const box = byId("said");
  box.hidePopover();
  box.showPopover();
  box.textContent = text;
  box.classList.toggle("bad", bad);
  clearTimeout(box.timer);
  box.timer = setTimeout(() => box.hidePopover(), bad ? 8000 : 4000);
}
