"use strict";

// Moves the cursors of the plane. The server answers what is at the crosshair: the page at its address replaces the one
// that is shown. Without this script the form and the rectangles do the same.

const form = () => document.getElementById("asked");
const plane = () => document.getElementById("plane");
const LEFT = 150, WIDTH = 840, BOTTOM = 414, HEIGHT = 380; // of the drawing, as in plane.html
const CURSORS = { asOf: "across", knownAt: "up", comparedWith: "up" };
const clamped = (share) => Math.max(0, Math.min(1, share));
const knots = (axis) => JSON.parse(plane().dataset[axis]);

// Returns the moment at a position on an axis, as an address asks for it, and its label.
function moment(share, axis) {
  const all = knots(axis);
  const exact = all.slice(1, -1).find(([place]) => Math.abs(place - share) < 0.004);
  if (exact) return { text: exact[3] ?? exact[1], label: exact[2] };
  const n = Math.max(1, all.findIndex(([place]) => place >= share));
  const [[left, start], [right, end]] = [all[n - 1], all[n]];
  const [from, to] = [Date.parse(start), Date.parse(end)];
  const text = new Date(from + ((share - left) / (right - left)) * (to - from)).toISOString().replace(/\.\d+/, "");
  return { text, label: text.slice(0, 19).replace("T", " ") };
}

function place(cursor, share) {
  const across = CURSORS[cursor.id] === "across";
  const at = across ? LEFT + WIDTH * share : BOTTOM - HEIGHT * share;
  cursor.setAttribute("transform", across ? `translate(${at} 0)` : `translate(0 ${at})`);
  const { text, label } = moment(share, CURSORS[cursor.id]);
  cursor.setAttribute("aria-valuenow", share);
  cursor.setAttribute("aria-valuetext", label);
  const flag = cursor.querySelector(".flag"), words = flag.dataset.words + label, wide = words.length * 6.4 + 12;
  flag.querySelector("text").textContent = words;
  flag.querySelector("rect").setAttribute("width", wide);
  if (across) flag.setAttribute("transform", `translate(${Math.min(-wide / 2, 998 - at - wide)} 11)`);
  else flag.setAttribute("transform", `translate(${flag.dataset.words ? LEFT : LEFT + WIDTH - wide} ${share > 0.97 ? 1 : -18})`);
  say(`${cursor.getAttribute("aria-label")} ${label}`);
  return text;
}

// A screen reader hears where a cursor is, and the answer once it is there.
function say(words) {
  const status = document.getElementById("moments");
  if (status) status.textContent = words;
}

// Returns the address for the state of the form, with some of it changed.
function address(changed = {}) {
  const state = new URLSearchParams();
  for (const [name, text] of new FormData(form())) if (text && !(name === "scale" && text === "even")) state.set(name, text);
  for (const [name, text] of Object.entries(changed)) state.set(name, text);
  return `${form().getAttribute("action")}?${state}`;
}

let latest = 0;
async function show(url, push = true, parts = ["main", ".site"]) {
  const mine = ++latest;
  const response = await fetch(url, { headers: { Accept: "text/html" } });
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  if (mine !== latest) return;
  const held = document.activeElement, scrolled = plane()?.parentElement.scrollLeft;
  if (!parts.every((part) => page.querySelector(part))) parts = ["main", ".site"]; // it says why there is no answer
  for (const part of parts) document.querySelector(part).replaceWith(document.adoptNode(page.querySelector(part)));
  showControls();
  if (scrolled !== undefined && plane()) plane().parentElement.scrollLeft = scrolled;
  const found = [...document.querySelectorAll("#answer .found")].map((it) => [...it.children].map((part) => part.textContent).join(" "));
  say(found.join(", ") || document.querySelector("#answer .lead")?.textContent.trim());
  document.title = page.title;
  if (push) history.pushState(null, "", url);
  const part = held?.matches("a[tabindex]") && held.closest("#plane, #rectangles")?.id; // the row of the answer has it then
  const focused = part ? document.querySelector(`#${part} a[tabindex="0"]`) : held?.id && document.getElementById(held.id);
  focused?.focus({ preventScroll: true });
  performance.mark("shown");
}

// Plays the runs from the first to the last, or from the cursor on, until it is stopped.
let played = null;
function play() {
  const cursor = document.getElementById("knownAt");
  const moments = knots("up").slice(1, -1), now = Number(cursor.getAttribute("aria-valuenow"));
  let next = moments.findIndex(([share]) => share > now + 0.004);
  if (next < 0) next = 0;
  const step = async () => {
    if (!plane() || next >= moments.length) return stop();
    const [share] = moments[next++];
    const { text } = moment(share, "up");
    place(document.getElementById("knownAt"), share);
    await show(address({ knownAt: text }), false);
    if (played !== null) played = setTimeout(step, 900);
  };
  played = setTimeout(step, 0);
  showControls();
}
function stop() {
  clearTimeout(played);
  played = null;
  showControls();
  history.replaceState(null, "", address());
}

function at(event) {
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(plane().getScreenCTM().inverse());
  return { across: clamped((point.x - LEFT) / WIDTH), up: clamped((BOTTOM - point.y) / HEIGHT) };
}

// A row of a table and its rectangle are lit together.
function light(event) {
  const row = event.target.closest?.("[data-row]")?.dataset.row;
  for (const lit of document.querySelectorAll(".lit")) if (lit.dataset.row !== row) lit.classList.remove("lit");
  if (row !== undefined) for (const it of document.querySelectorAll(`[data-row="${CSS.escape(row)}"]`)) it.classList.add("lit");
}
document.addEventListener("pointerover", light);
document.addEventListener("focusin", light);

let dragged = null;
document.addEventListener("pointerdown", (event) => {
  const cursor = event.target.closest?.(".cursor");
  if (!cursor || event.button !== 0) return;
  event.preventDefault();
  cursor.focus({ preventScroll: true });
  dragged = cursor;
});
document.addEventListener("pointermove", (event) => {
  if (dragged) place(dragged, at(event)[CURSORS[dragged.id]]);
});
document.addEventListener("pointerup", (event) => {
  if (!dragged) return;
  const cursor = dragged;
  dragged = null;
  show(address({ [cursor.id]: place(cursor, at(event)[CURSORS[cursor.id]]) }));
});

document.addEventListener("click", (event) => {
  if (event.target.id === "play") return played === null ? play() : stop();
  const row = event.target.closest("#rectangles a[href^='#row-']"), isKey = event.detail === 0;
  const link = row ? document.querySelector(row.hash) : isKey && event.target.closest("#plane a[data-row]");
  if (link && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    return show(link.getAttribute("href"));
  }
  if (!plane()?.contains(event.target) || event.target.closest(".cursor, .close") || event.ctrlKey || event.metaKey) return;
  event.preventDefault(); // a rectangle links to its corner; a pointer chooses the point instead
  const { across, up } = at(event);
  show(address({ asOf: moment(across, "across").text, knownAt: moment(up, "up").text }));
});

let waiting = null;
document.addEventListener("keydown", (event) => {
  const cursor = event.target.closest?.(".cursor");
  const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
  if (!cursor || !step) return;
  event.preventDefault();
  const now = Number(cursor.getAttribute("aria-valuenow"));
  const places = knots(CURSORS[cursor.id]).map(([share]) => share);
  const next = step > 0 ? places.find((share) => share > now + 0.004) : places.findLast((share) => share < now - 0.004);
  if (next === undefined) return;
  const text = place(cursor, next);
  clearTimeout(waiting);
  waiting = setTimeout(() => show(address({ [cursor.id]: text })), 250);
});

document.addEventListener("submit", (event) => {
  if (event.target !== form()) return;
  event.preventDefault();
  show(address());
});

// Another table has other keys and times: only `table` is kept.
document.addEventListener("change", (event) => {
  if (event.target.form !== form() || event.target.tagName !== "SELECT") return;
  const { table, scale } = Object.fromEntries(new FormData(form()));
  if (event.target.name === "scale") show(address({ scale }));
  else show(`${form().getAttribute("action")}?${new URLSearchParams({ table })}`);
});

// The slider of a table without a key: the rows follow it, and the rest of the page stays.
let moved = null;
function showControls() {
  for (const control of document.querySelectorAll(".slider[hidden], #play[hidden]")) control.hidden = false;
  const button = document.getElementById("play");
  if (button) button.textContent = played === null ? "▶ Play the runs" : "■ Stop";
}
document.addEventListener("input", (event) => {
  if (event.target.id !== "moment") return;
  const [text, label] = JSON.parse(event.target.dataset.moments)[Number(event.target.value)];
  event.target.setAttribute("aria-valuetext", label);
  document.getElementById("moment-label").textContent = label;
  form().elements.knownAt.value = text;
  clearTimeout(moved);
  moved = setTimeout(() => show(address(), false, ["#table-rows"]), 120);
});
document.addEventListener("change", (event) => {
  if (event.target.id === "moment") history.pushState(null, "", address());
});

let typed = null;
document.addEventListener("input", (event) => {
  if (event.target.name !== "key") return;
  clearTimeout(typed);
  typed = setTimeout(async () => {
    const query = new URLSearchParams({ table: form().elements.table.value, beginning: event.target.value });
    const response = await fetch(`${form().dataset.keys}?${query}`);
    if (!response.ok) return;
    const { keys } = await response.json();
    document.getElementById("keys").replaceChildren(...keys.map((key) => Object.assign(document.createElement("option"), { value: key })));
  }, 150);
});

addEventListener("popstate", () => show(location.href, false));
showControls();
const cursor = document.getElementById("asOf"); // it is in view where the plane is wider than the window
if (cursor) plane().parentElement.scrollLeft = cursor.getBoundingClientRect().x - innerWidth / 2;
