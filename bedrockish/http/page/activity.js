// The last hour of all nodes, what was slow, what is open, and how large it all is. Asked for every few seconds.

import { span } from "/page/diagram.js";
import { ask, send, why } from "/page/login.js";
import { bytes, number, table } from "/page/tables.js";

const PERIOD_MS = 5000, SURE_MS = 5000, HOUR_MS = 3600000, SHOWN = 20, SLOW_SHOWN = 8, SLICES_MIN = 3;
const LENGTHS = [2, 8, 20].map((minutes) => minutes * 60000);
const SVG = "http://www.w3.org/2000/svg", WIDE = 600, HIGH = 150, FOOT = 22;
const $ = (id) => document.getElementById(id);
const asked = new Map();  // open transactions whose end was asked for once: key -> until when a second time means it
let found = null, timer = 0, safeLags = {};
const kept = new Map();  // node -> what it told last

// What the other part of the page has heard meanwhile: how far each node is behind.
export function heard(lags) { safeLags = lags; }

async function poll() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const answer = await ask("/activity");
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.message);
    found = told;
    for (const [name, one] of Object.entries(found.nodes)) if (one.slices) kept.set(name, { ...one, at: performance.now() });
    show();
    $("activity-state").textContent = "";
  } catch (error) {
    $("activity-state").textContent = why(error);
  }
  timer = setTimeout(poll, PERIOD_MS);
}

// The curves of a node that does not answer stay, and every node keeps its colour.
const known = () => Object.keys(found.nodes).sort().map((name) => [name, kept.get(name)]).filter(([, one]) => one);
const colour = (name) => "t" + (Object.keys(found.nodes).sort().indexOf(name) % 8);

function show() {
  const place = (one, name) => one.columns.indexOf(name);
  const rate = (name) => (one) => one.slices.map((slice) => [slice[place(one, "at_ms")], slice[place(one, name)] / slice[place(one, "seconds")]]);
  const value = (name) => (one) => one.slices.map((slice) => [slice[place(one, "at_ms")], slice[place(one, name)]]);
  chart($("hour-commits"), [rate("commits")], (high) => number(high) + " /s");
  chart($("hour-latency"), [value("p99_ms"), value("p50_ms")], span);
  chart($("hour-conflicts"), [rate("conflicts")], (high) => number(high) + " /s");
  $("hour-legend").replaceChildren(...known().map(([name]) => {
    const item = document.createElement("li");
    item.className = colour(name);
    item.textContent = name;
    return item;
  }));
  showSlowest();
  showSizes();
  showSlow();
  showOpen();
}

// Draws a line for each node and each kind of values; the first kind is drawn thick.
function chart(svg, kinds, unit) {
  svg.setAttribute("viewBox", `0 0 ${WIDE} ${HIGH + FOOT}`);
  const end = Math.max(0, ...known().flatMap(([, one]) => one.slices.slice(-1).map((slice) => slice[0])));
  const first = Math.min(end, ...known().flatMap(([, one]) => one.slices.slice(0, 1).map((slice) => slice[0])));
  const length = LENGTHS.find((one) => one >= end - first) ?? HOUR_MS;  // of a young cluster, less than an hour is shown
  const lines = known().flatMap(([name, one]) => kinds.map((kind, rank) => ({ name, rank, points: kind(one).filter(([at]) => at > end - length - 1) })));
  const high = Math.max(0, ...lines.flatMap((line) => line.points.map(([, value]) => value ?? 0)));
  const make = (name, attributes, text) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, one] of Object.entries(attributes)) element.setAttribute(key, one);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const x = (at) => (WIDE * (at - end + length)) / length, y = (value) => HIGH - (high ? (HIGH - 24) * (value / high) : 0);
  const parts = [make("line", { x1: 0, x2: WIDE, y1: HIGH, y2: HIGH, class: "axis" })];
  for (const part of [3, 2, 1]) {
    const ago = (length * part) / 4, at = x(end - ago);
    parts.push(make("line", { x1: at, x2: at, y1: 4, y2: HIGH, class: "grid" }), make("text", { x: at, y: HIGH + 18, "text-anchor": "middle" }, `−${ago < 60000 ? ago / 1000 + " s" : ago / 60000 + " min"}`));
  }
  const ready = Math.max(0, ...lines.map((line) => line.points.length)) >= SLICES_MIN;
  for (const { name, rank, points } of ready ? lines : []) {
    let path = "", broken = true;
    for (const [at, value] of points) {
      if (value === null) { broken = true; continue; }
      path += `${broken ? "M" : "L"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      broken = false;
    }
    if (path) parts.push(make("path", { d: path + "h0.1", class: `line ${colour(name)}${rank ? " second" : ""}` }));
  }
  parts.push(make("text", { x: 2, y: 15 }, ready ? "up to " + unit(high) : "nothing to draw before half a minute"));
  svg.replaceChildren(...parts);
}

function showSizes() {
  const rows = Object.entries(found.nodes).map(([name, one]) => {
    const sizes = one.sizes;
    if (!sizes) return [[name], [one.error ?? "not told by its older release", "bad wide"], [""], [""], [""]];
    const lag = safeLags[name];
    return [[name], [bytes(sizes.database), "num"], [bytes(sizes.journal), "num"], [bytes(sizes.wal), "num"], [lag == null ? "" : span(lag), "num"]];
  });
  table($("sizes"), [["node"], ["database", "num"], ["journal in it", "num"], ["write-ahead log", "num"], ["safe time behind", "num"]], rows, "no nodes");
}

// A text of which two lines are shown; the whole is its title.
function clipped(text) {
  const element = document.createElement("span");
  element.className = "clipped";
  element.textContent = element.title = text;
  return element;
}

// The slowest answers of the last slice, for the tile above.
function showSlowest() {
  const last = known().filter(([name]) => found.nodes[name].slices).map(([name, one]) => [one.slices.at(-1)?.[one.columns.indexOf("p99_ms")], name]);
  const [most, at] = last.filter(([value]) => value != null).sort(([a], [b]) => b - a)[0] ?? [];
  $("slowest").textContent = most === undefined ? "–" : span(most);
  $("slowest-at").textContent = at ? `at ${at}, in the last ten seconds` : "";
}

function showSlow() {
  const rows = known().flatMap(([name, one]) => one.slow.map((slow) => [name, slow, one]))
    .sort(([, a], [, b]) => b.total_ms - a.total_ms).slice(0, SLOW_SHOWN)
    .map(([name, slow, one]) => [[clipped(slow.sql), "mono wide"], [name], [number(slow.times), "num"], [span(slow.longest_ms), "num"], [span(slow.total_ms), "num"], [span(slow.ago_ms + performance.now() - one.at) + " ago", "num"]]);
  table($("slow"), [["statement"], ["node"], ["times", "num"], ["longest", "num"], ["together", "num"], ["last", "num"]], rows, "no statement took a tenth of a second in the last hour");
}

function showOpen() {
  const focused = document.activeElement?.dataset?.key;
  const rows = known().filter(([name]) => found.nodes[name].transactions).flatMap(([name, one]) => one.transactions.map((open) => [name, open]))
    .sort(([, a], [, b]) => b.open_ms - a.open_ms).slice(0, 2 * SHOWN)
    .map(([name, open]) => [[open.command, "mono"], [name], [open.client], [span(open.open_ms), "num"], [open.idle_ms ? span(open.idle_ms) : "busy", "num"], [number(open.changed), "num"], [clipped(open.statement), "mono wide"], [button(name, open.command)]]);
  table($("open"), [["transaction"], ["node"], ["client"], ["open for", "num"], ["idle for", "num"], ["changes", "num"], ["last statement"], ["action"]], rows, "none");
  if (focused) [...$("open").querySelectorAll("button")].find((one) => one.dataset.key === focused)?.focus();
}

// Ends a transaction when it is pressed twice.
function button(node, id) {
  const key = JSON.stringify([node, id]), element = document.createElement("button");
  const isSure = () => (asked.get(key) ?? 0) > performance.now();
  element.dataset.key = key;
  element.textContent = isSure() ? "Really?" : "End";
  element.setAttribute("aria-label", `End transaction ${id} at ${node}`);
  element.addEventListener("click", async () => {
    if (!isSure()) {
      asked.set(key, performance.now() + SURE_MS);
      element.textContent = "Really?";
      return;
    }
    asked.delete(key);
    element.disabled = true;
    try {
      const answer = await send("/transactions/end", { node, command: id });
      const told = await answer.json();
      $("open-said").textContent = answer.ok ? `${id} was ended; it did not happen` : told.message;
    } catch (error) {
      $("open-said").textContent = why(error);
    }
    poll();
  });
  return element;
}

document.addEventListener("visibilitychange", poll);
export const start = poll;
