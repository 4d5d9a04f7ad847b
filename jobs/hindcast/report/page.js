"use strict";

// Shows all gates of the report that is embedded in the page, and offers the report as JSON.
// Text of a report is not trusted: it becomes text and attributes here, never HTML.

const ROWS = 100; // shown at a time
const RUNS = 20; // the width of a trend
const SIGNS = { failed: "✗", error: "!", unchecked: "–", passed: "✓" };
const ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"].map((word) => `the ${word} gate`);
const ON_FAILURE = {
  stop: "stop: neither the table nor what depends on it is published",
  quarantine: "quarantine: the whole change of the failing keys is held back",
  warn: "warn: it is reported here, and the rows are published",
};

const element = (id) => document.getElementById(id);
const create = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const createSvg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

async function readEmbedded() {
  const bytes = Uint8Array.from(atob(element("embedded").textContent), (c) => c.charCodeAt(0));
  const lines = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return (await new Response(lines).text()).split("\n"); // JSON has only escaped line breaks
}

function formatNumber(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number" || Math.abs(value) >= 1e15) return String(value);
  return value.toLocaleString("en", Number.isInteger(value) ? {} : { maximumSignificantDigits: 6 });
}

function createSparkline(trend, outcome, width, height) {
  const known = trend.filter(Number.isFinite);
  if (known.length < 3) return ""; // fewer show no trend
  const [low, high] = [Math.min(...known) / 2, Math.max(...known) / 2]; // halved: their difference stays finite
  const step = (width - 8) / Math.max(RUNS - 1, trend.length - 1);
  const x = (n) => width - 4 - step * (trend.length - 1 - n); // this run is at the right edge, however long the trend
  const y = (value) => (high > low ? height - 4 - (height - 8) * ((value / 2 - low) / (high - low)) : height / 2);
  let path = "";
  trend.forEach((value, n) => {
    if (!Number.isFinite(value)) return;
    const point = `${x(n).toFixed(1)} ${y(value).toFixed(1)}`;
    path += Number.isFinite(trend[n - 1]) ? `L${point}` : `M${point}h0`; // h0: a point between two gaps is a dot
  });
  const label = `Observed in ${trend.length} runs, oldest first: ${trend.map(formatNumber).join(", ")}`;
  const svg = createSvg("svg", { class: "spark", role: "img", width, height, viewBox: `0 0 ${width} ${height}`, "aria-label": label },
    createSvg("title", {}, label), createSvg("path", { d: path }));
  const last = trend.at(-1);
  if (!Number.isFinite(last)) return svg;
  const [cx, cy] = [x(trend.length - 1), y(last)];
  svg.append(outcome === "passed" || outcome === "unchecked"
    ? createSvg("circle", { class: "last", cx, cy, r: 4 })
    : createSvg("path", { class: "last failed", d: `M${cx - 5} ${cy}l5 -5l5 5l-5 5z` }));
  return svg;
}

function commandElement(text) {
  const copy = create("button", { type: "button", class: "copy" }, "Copy");
  return create("span", { class: "command" }, create("code", {}, text), " ", copy);
}

function copyCommand(button) {
  const code = button.parentElement.querySelector("code");
  getSelection().selectAllChildren(code);
  const done = document.execCommand("copy"); // navigator.clipboard is missing on pages served by plain http
  button.textContent = done ? "Copied" : "Selected";
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

function detailsRow(gate) {
  const facts = [
    ["Failing rows", gate.rows && commandElement(gate.rows)],
    ["If it fails", ON_FAILURE[gate.on_failure] ?? gate.on_failure],
    ["Observed", gate.trend?.length > 1 && create("span", {}, createSparkline(gate.trend, gate.outcome, 320, 64),
      `oldest first: ${gate.trend.map(formatNumber).join(", ")}`)],
    ["In the contract", gate.gate !== undefined && `${ORDINALS[gate.gate] ?? `gate ${formatNumber(gate.gate + 1)}`} of ${gate.table}`],
  ];
  const list = create("dl", {}, ...facts.filter(([, value]) => value)
    .map(([name, value]) => create("div", {}, create("dt", {}, name), create("dd", {}, value))));
  const cell = create("td", { colspan: 8, role: "gridcell" }, list);
  return create("tr", { class: "details", role: "row", "aria-level": 2 }, cell);
}

function gateRow(gate, index) {
  const cell = (label, kind, ...children) =>
    create("td", { role: "gridcell", class: kind, ...(label && { "data-label": label }) }, ...children);
  const sign = create("span", { class: "sign", "aria-hidden": "true" }, SIGNS[gate.outcome] ?? "!");
  const expectation = create("code", {}, create("b", {}, gate.expectation ?? "?"), create("wbr", {}), gate.parameters);
  const tr = create("tr", { role: "row", "aria-level": 1, "aria-expanded": "false", "aria-rowindex": index + 2, tabindex: -1 },
    cell("", "", create("span", { class: `outcome ${gate.outcome}` }, sign, ` ${gate.outcome}`)),
    cell("", "names", gate.table),
    cell("", "expectation", create("span", { class: "rule" }, gate.rule), " ", expectation, gate.detail ? create("small", {}, gate.detail) : ""),
    cell("On failure", "", gate.on_failure ?? "–"),
    cell("Checked", "number", formatNumber(gate.checked)),
    cell("Failing", "number", formatNumber(gate.failing)),
    cell("Observed", "number", formatNumber(gate.observed)),
    cell("", "trend", createSparkline(gate.trend ?? [], gate.outcome, 96, 24)));
  return Object.assign(tr, { gate, index });
}

// The list: `gates` are all, `shown` those that pass the filter, `first` starts the page, `active` has the focus.
const list = { gates: [], shown: [], first: 0, active: 0, open: new Set() };
const body = element("results")?.tBodies[0];
const rowOf = (index) => [...body.rows].find((tr) => tr.index === index);
const isOpen = (tr) => tr.getAttribute("aria-expanded") === "true";
const chosenOutcome = () => document.querySelector("[name=outcome]:checked").value;

function applyFilter() {
  const words = element("filter").value.toLowerCase().split(/\s+/);
  const found = list.gates.filter((gate) => words.every((word) => gate.text.includes(word)));
  for (const count of document.querySelectorAll("[data-count]")) {
    const outcome = count.dataset.count;
    count.textContent = formatNumber(outcome ? found.filter((gate) => gate.outcome === outcome).length : found.length);
  }
  list.shown = chosenOutcome() ? found.filter((gate) => gate.outcome === chosenOutcome()) : found;
  list.first = list.active = 0;
}

function render() {
  const page = list.shown.slice(list.first, list.first + ROWS);
  body.replaceChildren(...page.map((gate, n) => gateRow(gate, list.first + n)));
  for (const tr of [...body.rows].filter((tr) => list.open.has(tr.gate))) expand(tr);
  element("results").setAttribute("aria-rowcount", list.shown.length + 1);
  const all = list.shown.length;
  const range = all > ROWS ? `; ${formatNumber(list.first + 1)} to ${formatNumber(list.first + page.length)} shown` : "";
  element("status").textContent = `${formatNumber(all)} of ${formatNumber(list.gates.length)} gates${range}`;
  element("previous").disabled = list.first === 0;
  element("next").disabled = list.first + ROWS >= all;
  element("previous").parentElement.hidden = all <= ROWS;
  activate(list.active);
  saveState();
}

function activate(index) {
  rowOf(list.active)?.setAttribute("tabindex", -1);
  list.active = index;
  rowOf(index)?.setAttribute("tabindex", 0);
}

function showPage(first) {
  list.first = list.active = Math.max(0, Math.min(first, Math.floor((list.shown.length - 1) / ROWS) * ROWS));
  render();
}

function move(step) {
  const inside = document.activeElement.closest("#results tbody");
  const index = Math.max(0, Math.min(list.active + (inside ? step : 0), list.shown.length - 1));
  if (index < list.first || index >= list.first + ROWS) showPage(Math.floor(index / ROWS) * ROWS);
  activate(index);
  rowOf(index)?.focus();
}

function expand(tr) {
  tr.setAttribute("aria-expanded", "true");
  tr.after(detailsRow(tr.gate));
  list.open.add(tr.gate);
}

function collapse(tr) {
  tr.setAttribute("aria-expanded", "false");
  tr.nextElementSibling.remove();
  list.open.delete(tr.gate);
}

function toggle(tr) {
  if (isOpen(tr)) collapse(tr);
  else expand(tr);
}

// The URL keeps what is shown: #filter=amount&outcome=failed&page=2
function saveState() {
  const state = new URLSearchParams();
  if (element("filter").value) state.set("filter", element("filter").value);
  if (chosenOutcome()) state.set("outcome", chosenOutcome());
  if (list.first) state.set("page", list.first / ROWS + 1);
  const now = new URLSearchParams(location.hash.slice(1));
  if (state.size || ["filter", "outcome", "page"].some((name) => now.has(name))) {
    history.replaceState(null, "", `${location.pathname}${location.search}${state.size ? `#${state}` : ""}`);
  }
}

function restoreState() {
  const state = new URLSearchParams(location.hash.slice(1));
  element("filter").value = state.get("filter") ?? "";
  for (const input of document.getElementsByName("outcome")) input.checked = input.value === (state.get("outcome") ?? "");
  applyFilter();
  showPage(((parseInt(state.get("page")) || 1) - 1) * ROWS);
}

function onKeydown(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || element("keys").open) return;
  const target = event.target;
  const tr = target.closest("#results tbody tr");
  const onRow = tr === target;
  const letters = element("letters").checked && target !== element("filter");
  if (event.key === "/" && letters) element("filter").focus();
  else if (event.key === "?" && letters) element("keys").showModal();
  else if ((event.key === "j" && letters) || (event.key === "ArrowDown" && onRow)) move(1);
  else if ((event.key === "k" && letters) || (event.key === "ArrowUp" && onRow)) move(-1);
  else if (event.key === "Enter" && onRow) toggle(tr);
  else if (event.key === "Enter" && target === element("filter")) move(0);
  else if (event.key === "Escape" && target === element("filter")) {
    target.value = "";
    applyFilter();
    render();
  } else if (event.key === "Escape" && tr && isOpen(rowOf(list.active))) {
    collapse(rowOf(list.active));
    rowOf(list.active).focus();
  } else return;
  event.preventDefault();
}

function onClick(event) {
  const tr = event.target.closest("tr");
  if (tr?.gate && getSelection().isCollapsed) {
    activate(tr.index);
    toggle(tr);
  }
}

async function start() {
  const [json, listed] = await readEmbedded();
  const report = JSON.parse(json);
  element("save").href = URL.createObjectURL(new Blob([json], { type: "application/json" }));
  element("save").download = `${report.pipeline}-run-${report.run}.json`;
  document.addEventListener("click", (event) => event.target.matches(".copy") && copyCommand(event.target));
  for (const hidden of document.querySelectorAll("[data-script]")) hidden.hidden = false;
  if (!body) return;
  list.gates = JSON.parse(listed).map(([table, place, outcome, parameters, rule]) => {
    const gate = { ...report.tables[table].gates[place], table, outcome, parameters, rule };
    const words = [table, rule, gate.expectation, parameters, gate.on_failure, gate.detail, outcome];
    return { ...gate, text: words.join(" ").toLowerCase() };
  });
  element("help").addEventListener("click", () => element("keys").showModal());
  const failed = list.gates.filter((gate) => gate.outcome === "failed");
  if (failed.length <= 3) list.open = new Set(failed);
  const results = element("results");
  results.setAttribute("role", "treegrid");
  results.classList.remove("unscripted");
  restoreState();
  element("filter").addEventListener("input", () => { applyFilter(); render(); });
  for (const input of document.getElementsByName("outcome")) input.addEventListener("change", () => { applyFilter(); render(); });
  element("previous").addEventListener("click", () => showPage(list.first - ROWS));
  element("next").addEventListener("click", () => showPage(list.first + ROWS));
  body.addEventListener("click", onClick);
  document.addEventListener("keydown", onKeydown);
  addEventListener("hashchange", () => location.hash.includes("=") && restoreState());
  performance.mark("gates shown");
}

start();
