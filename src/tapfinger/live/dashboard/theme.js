// Light, dark, or as the system is.

import { forgetColours } from "./canvas.js";
import { byId } from "./dom.js";

const KEY = "tapfinger-theme";
const NAMES = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" };

/** Set up the switch; ``onChange`` redraws what does not follow by itself. */
export function setUpTheme(onChange) {
  const button = byId("theme");
  const show = () => {
    const theme = NAMES[localStorage.getItem(KEY)] ? localStorage.getItem(KEY) : "auto";
    document.documentElement.dataset.theme = theme;
    button.textContent = NAMES[theme];
    button.setAttribute("aria-label", `Colours: ${theme}. Change`);
    forgetColours();
    onChange();
    return theme;
  };
  button.addEventListener("click", () => {
    const names = Object.keys(NAMES);
    localStorage.setItem(KEY, names[(names.indexOf(show()) + 1) % names.length]);
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}
