// The last hour of all nodes, what was slow, what is open, and how large it all is. Asked for every few seconds.

import { span } from "/page/diagram.js";
import { ask, send, why } from "/page/login.js";
import { bytes, number, table } from "/page/tables.js";

const PERIOD_MS = 5000, SURE_MS = 5000, HOUR_MS = 3600000, SHOWN = 20;
const LENGTHS = [2, 8, 20].map((minutes) => minutes * 60000);
const SVG = "http://www.w3.org/2000/svg", WIDE = 600, HIGH = 150, FOOT = 22;
const $ = (id) => document.getElementById(id);
const asked = new Map();  // open transactions whose end was asked for once: key -> until when a second time means it
let found = null, timer = 0, safeLags = {};

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
    show();
    $("activity-state").textContent = "";
  } catch (error) {
    $("activity-state").textContent = why(error);
  }
  timer = setTimeout(poll, PERIOD_MS);
}

const known = () => Object.entries(found.nodes).filter(([, one]) => one.slices);

function show() {
  const place = (one, name) => one.columns.indexOf(name);
  const rate = (name) => (one) => one.slices.map((slice) => [slice[place(one, "at_ms")], slice[place(one, name)] / slice[place(one, "seconds")]]);
  const value = (name) => (one) => one.slices.map((slice) => [slice[place(one, "at_ms")], slice[place(one, name)]]);
  chart($("hour-commits"), [rate("commits")], (high) => number(high) + " /s");
  chart($("hour-latency"), [value("p99_ms"), value("p50_ms")], span);
  chart($("hour-conflicts"), [rate("conflicts")], (high) => number(high) + " /s");
  $("hour-legend").replaceChildren(...known().map(([name], index) => {
    const item = document.createElement("li");
    item.className = "t" + (index % 8);
    item.textContent = name;
    return item;
  }));
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
  const lines = known().flatMap(([, one], index) => kinds.map((kind, rank) => ({ index, rank, points: kind(one).filter(([at]) => at > end - length - 1) })));
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
  for (const { index, rank, points } of lines) {
    let path = "", broken = true;
    for (const [at, value] of points) {
      if (value === null) { broken = true; continue; }
      path += `${broken ? "M" : "L"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      broken = false;
    }
    if (path) parts.push(make("path", { d: path + "h0.1", class: `line t${index % 8}${rank ? " second" : ""}` }));
  }
  parts.push(make("text", { x: 2, y: 15 }, lines.some((line) => line.points.length) ? "up to " + unit(high) : "the first ten seconds are not over"));
  svg.replaceChildren(...parts);
}

function showSizes() {
  const rows = Object.entries(found.nodes).map(([name, one]) => {
    const sizes = one.sizes;
    if (!sizes) return [[name], [one.error ?? "not told: an older release", "bad wide"], [""], [""], [""]];
    const lag = safeLags[name];
    return [[name], [bytes(sizes.database), "num"], [bytes(sizes.journal), "num"], [bytes(sizes.wal), "num"], [lag == null ? "" : span(lag), "num"]];
  });
  table($("sizes"), [["node"], ["database", "num"], ["journal in it", "num"], ["write-ahead log", "num"], ["safe time behind", "num"]], rows, "no nodes");
}

function showSlow() {
  const rows = known().flatMap(([name, one]) => one.slow.map((slow) => [name, slow]))
    .sort(([, a], [, b]) => b.total_ms - a.total_ms).slice(0, SHOWN)
    .map(([name, slow]) => [[slow.sql, "mono wide"], [name], [number(slow.times), "num"], [span(slow.longest_ms), "num"], [span(slow.total_ms), "num"], [span(slow.ago_ms) + " ago", "num"]]);
  table($("slow"), [["statement"], ["node"], ["times", "num"], ["longest", "num"], ["in all", "num"], ["last", "num"]], rows, "none took a tenth of a second in the last hour");
}

function showOpen() {
  const focused = document.activeElement?.dataset?.key;
  const rows = known().flatMap(([name, one]) => one.transactions.map((open) => [name, open]))
    .sort(([, a], [, b]) => b.open_ms - a.open_ms).slice(0, 2 * SHOWN)
    .map(([name, open]) => [[open.id, "mono"], [name], [open.client], [span(open.open_ms), "num"], [open.idle_ms ? span(open.idle_ms) : "busy", "num"], [number(open.changed), "num"], [open.statement, "mono wide"], [button(name, open.id)]]);
  table($("open"), [["id"], ["node"], ["client"], ["open for", "num"], ["idle for", "num"], ["changes", "num"], ["last statement"], [""]], rows, "none");
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
      const answer = await send("/transactions/end", { node, id });
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
