"use strict";

// Moves between the rectangles of the plane, and between the rows of its table, by keys. One of each is in the order of
// Tab. Arrow keys lead from a rectangle to its neighbours in valid and system time, Page Up and Page Down, and arrow keys
// in the table, to the row before and after it; Enter follows its link, which asks at its corner.

const LINKS = "#plane a[data-row], #rectangles a[href^='#row-']";
const list = (link) => [...link.closest("#plane, #rectangles").querySelectorAll(LINKS)];

const measure = (link) => ["x", "y", "width", "height"].map((name) => Number(link.querySelector("svg").getAttribute(name)));

// Returns where a rectangle is along the axis of a key and across it, in the direction of the key.
function extent(link, key) {
  const [x, y, wide, high] = measure(link);
  const [valid, system] = [[x, x + wide], [-y - high, -y]];
  const [along, across] = key === "ArrowLeft" || key === "ArrowRight" ? [valid, system] : [system, valid];
  const sign = key === "ArrowLeft" || key === "ArrowDown" ? -1 : 1;
  return { begin: sign * along[0], across };
}

// Returns the rectangle that begins next in a direction: of those beside this one, if there are any.
function neighbour(link, key) {
  const mine = extent(link, key);
  const others = list(link).map((other) => {
    const { begin, across } = extent(other, key);
    const shared = Math.min(across[1], mine.across[1]) - Math.max(across[0], mine.across[0]);
    return { other, ahead: begin - mine.begin, isApart: shared < 0.5, off: Math.abs(across[0] - mine.across[0]) };
  });
  const order = (one, two) => one.isApart - two.isApart || one.ahead - two.ahead || one.off - two.off;
  return others.filter(({ ahead }) => ahead > 0.05).sort(order)[0]?.other;
}

function next(link, key) {
  const all = list(link), at = all.indexOf(link);
  const steps = { PageDown: 1, PageUp: -1, ...(link.closest("#plane") ? {} : { ArrowDown: 1, ArrowUp: -1 }) };
  if (key === "Home" || key === "End") return all.at(key === "Home" ? 0 : -1);
  if (key in steps) return all[at + steps[key]];
  return link.closest("#plane") && key.startsWith("Arrow") ? neighbour(link, key) : undefined;
}

// Leaves a link as the only one of its plane or table in the order of Tab.
function enter(link) {
  for (const other of list(link)) other.setAttribute("tabindex", other === link ? 0 : -1);
}

// Draws a ring around the rectangle that has the focus, above the others and wide enough to be seen; null: around none.
function ring(link) {
  const it = document.querySelector("#plane .ring");
  it?.setAttribute("visibility", link ? "visible" : "hidden");
  if (!it || !link) return;
  const [x, y, wide, high] = measure(link), [beside, above] = [wide, high].map((size) => Math.max(2, (14 - size) / 2));
  const place = { x: x - beside, y: y - above, width: wide + 2 * beside, height: high + 2 * above };
  for (const [name, value] of Object.entries(place)) it.setAttribute(name, value);
}

document.addEventListener("keydown", (event) => {
  const link = event.target.closest?.(LINKS);
  if (!link || event.ctrlKey || event.metaKey || event.altKey) return;
  const to = next(link, event.key);
  if (to) to.focus();
  if (to || event.key.startsWith("Arrow") || event.key.startsWith("Page")) event.preventDefault();
});
document.addEventListener("focusin", (event) => {
  const link = event.target.closest?.(LINKS);
  if (link) enter(link);
  ring(link?.matches("#plane a:focus-visible") ? link : null);
});
