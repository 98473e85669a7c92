// The studio's page: which room is open, its state in the address, and the colours.

import { tellOf } from "./ask.js";
import { read } from "./address.js";
import * as regression from "./regression.js";
import * as scores from "./scores.js";
import * as translation from "./translation.js";

const ROOMS = { regression, translation, scores };
const THEMES = ["system", "light", "dark"];
const opened = {};

async function enter(focus) {
  const { room: asked, values } = read();
  const name = asked in ROOMS ? asked : "regression";
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== `room-${name}`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.room === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${document.getElementById(`title-${name}`).textContent} · regard studio`;
  document.getElementById("problem").hidden = true;
  try {
    if (!opened[name]) {
      opened[name] = unlocked(document.getElementById(`room-${name}`), ROOMS[name].open(values));
      await opened[name];
    } else {
      const room = await opened[name];
      if (Object.keys(values).length) room.take(values);
      else room.remember();  // the state it was left in
    }
    if (focus) document.getElementById(`title-${name}`).focus();
  } catch (error) {
    delete opened[name];
    tellOf(error);
  }
}

// A room takes no input before it is there to hear it.
async function unlocked(section, opening) {
  section.inert = true;
  section.setAttribute("aria-busy", "true");
  const room = await opening;
  section.inert = false;
  section.setAttribute("aria-busy", "false");
  return room;
}

function colours(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = `Colours: ${theme}`;
  try { localStorage.setItem("regard-studio-theme", theme); } catch { /* a browser may keep nothing */ }
}

let kept = null;
try { kept = localStorage.getItem("regard-studio-theme"); } catch { /* as above */ }
let theme = THEMES.includes(kept) ? kept : "system";
colours(theme);
document.getElementById("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  colours(theme);
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.querySelector("main > section:not([hidden]) h1").focus();
});
addEventListener("hashchange", () => enter(true));
enter(false);
