// The space-time diagram: one line for each node, time to the right, an arrow for each message.
// What was sent at one node and what was heard at another come from two rings; here they become one arrow.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 8;
const RECOVERY = new Set(["recover", "promise", "accept", "accepted", "refused", "outcome", "ask"]);
const LEFT = 42, RIGHT = 18, TOP = 34, BOTTOM = 26;

// A txid is a leader and a clock of milliseconds and 22 bits of counter: what tells neighbours apart is in between.
export function shortName(txid) {
  const dash = txid.lastIndexOf("-");
  return txid.slice(0, dash) + "·" + txid.slice(dash + 1).slice(-10, -5);
}

// Clocks of machines differ. The fastest message in each direction between two nodes took about the same time, so half
// of the difference is the difference of the clocks.
export function offsets(nodes, arrows, me) {
  const best = new Map();
  for (const { from, to, sent, heard } of arrows) {
    if (sent === null || heard === null || from === to) continue;
    const key = from + ">" + to;
    best.set(key, Math.min(best.get(key) ?? Infinity, heard - sent));
  }
  const found = {};
  for (const node of nodes) {
    const there = best.get(me + ">" + node), back = best.get(node + ">" + me);
    const off = there === undefined || back === undefined ? 0 : (there - back) / 2;
    found[node] = Math.abs(off) > 2 ? off : 0;  // below that it may be chance
  }
  return found;
}

// Events as [number, wall_ms, kind, txid, from, to, line, more] of several nodes become arrows.
export function pair(events) {
  const open = new Map(), arrows = [];
  for (const { node, event } of events) {
    const [, at, kind, txid, from, to, line] = event;
    if (from === to) {
      arrows.push({ kind, txid, from, to, sent: at, heard: at, line });
      continue;
    }
    const key = [kind, txid, from, to].join(" ");
    const side = node === from ? "sent" : "heard";
    const waiting = (open.get(key) ?? []).find((one) => one[side] === null);
    if (waiting) {
      waiting[side] = at;
      if (side === "sent") waiting.line = line;
    } else {
      const arrow = { kind, txid, from, to, sent: null, heard: null, line };
      arrow[side] = at;
      arrows.push(arrow);
      open.set(key, [...(open.get(key) ?? []), arrow]);
    }
  }
  return arrows;
}

// Which transactions to draw: the latest that began in our sight, or of those the ones that met others.
// Not those of which the other side may still be on its way to this page; those first of which both sides are known
// (a busy node takes note of a part, and not all of them begin a new part at the same moment).
export function choose(arrows, count, conflictsOnly, now, silent) {
  const talks = new Map();
  for (const arrow of arrows) {
    if (!talks.has(arrow.txid)) talks.set(arrow.txid, []);
    talks.get(arrow.txid).push(arrow);
  }
  let found = [...talks.entries()].map(([txid, said]) => ({
    txid, said,
    began: Math.min(...said.map((one) => one.sent ?? one.heard)),
    whole: said.some((one) => one.kind === "begin" && one.sent !== null) || !said.some((one) => one.from !== one.to),
    met: said.some((one) => one.kind === "reject"),
    ended: Math.max(...said.map((one) => one.heard ?? one.sent)),
  })).filter((one) => one.whole && one.ended < now - 300);
  if (conflictsOnly) {
    const others = new Set(found.filter((one) => one.met).flatMap((one) => one.said.map((said) => said.other)).filter(Boolean));
    found = found.filter((one) => one.met || others.has(one.txid));
  }
  const known = (one) => silent.has(one.to) || silent.has(one.from) || (one.sent !== null && one.heard !== null);
  const ended = (said) => said.some((one) => one.kind === "apply" || one.kind === "rollback");
  const complete = found.filter((one) => ended(one.said) && one.said.every(known));
  return (complete.length >= count ? complete : found).sort((a, b) => a.began - b.began).slice(-count);
}

// Time on paper: pauses in which nothing is said are cut short.
function scale(times, width) {
  const sorted = [...new Set(times)].sort((a, b) => a - b);
  const gaps = sorted.slice(1).map((time, index) => time - sorted[index]);
  const busy = [...gaps].sort((a, b) => a - b);
  const cap = Math.max(4, 12 * (busy[Math.floor(busy.length / 2)] ?? 0));
  const places = new Map(), breaks = [];
  let sum = 0;
  sorted.forEach((time, index) => {
    if (index) {
      const gap = gaps[index - 1];
      sum += Math.min(gap, cap);
      if (gap > 4 * cap) breaks.push({ at: sum - cap / 2, gap });
    }
    places.set(time, sum);
  });
  const factor = width / (sum || 1);
  return { x: (time) => LEFT + places.get(time) * factor, breaks: breaks.map((one) => ({ x: LEFT + one.at * factor, gap: one.gap })) };
}

function make(name, attributes, parent, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent?.append(element);
  return element;
}

const kindClass = (kind) => "k-" + (RECOVERY.has(kind) ? "other" : kind);

export function colourOf(txids, txid) {
  return "t" + (Math.max(0, txids.indexOf(txid)) % COLOURS);
}

// Draws `talks`; returns what can be chosen, in the order of time.
export function draw(svg, { nodes, silent, talks, colours, skew, chosen, nameOf, onPoint }) {
  const width = Math.max(300, svg.clientWidth || 800);
  const step = width < 600 ? 74 : 92;
  const height = TOP + BOTTOM + step * Math.max(1, nodes.length - 1);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.height = height + "px";
  const paper = make("g", {}, null);
  const y = (node) => TOP + step * nodes.indexOf(node);
  for (const node of nodes) {
    make("line", { x1: LEFT - 10, x2: width - 4, y1: y(node), y2: y(node), class: silent.has(node) ? "track silent" : "track" }, paper);
    make("text", { x: 10, y: y(node) + 5, class: "node" }, paper, node);
    if (silent.has(node)) make("text", { x: width - 8, y: y(node) - 6, "text-anchor": "end" }, paper, "silent");
  }
  const at = (node, time) => time - (skew[node] ?? 0);
  const drawn = [];
  for (const talk of talks) {
    for (const said of talk.said) {
      if (said.sent === null || !nodes.includes(said.from) || !nodes.includes(said.to)) continue;
      const begin = at(said.from, said.sent);
      drawn.push({ ...said, begin, end: said.heard === null ? null : Math.max(begin, at(said.to, said.heard)) });
    }
  }
  if (!drawn.length) {
    make("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, paper, "nothing was said since this page looks");
    svg.replaceChildren(paper);
    return [];
  }
  const times = drawn.flatMap((one) => (one.end === null ? [one.begin] : [one.begin, one.end]));
  const { x, breaks } = scale(times, width - LEFT - RIGHT);
  const whole = span(Math.max(...times) - Math.min(...times)) + " in all", glyph = 6.2;
  let free = 0;  // where the next word may begin: one that would cover another, or the sum at the right, is left out
  for (const one of breaks) {
    make("line", { x1: one.x, x2: one.x, y1: 8, y2: height - 20, class: "break" }, paper);
    const word = span(one.gap), half = (glyph * word.length) / 2;
    if (one.x - half < free || one.x + half > width - 16 - glyph * whole.length) continue;
    make("text", { x: one.x, y: height - 8, "text-anchor": "middle" }, paper, word);
    free = one.x + half + 4;
  }
  const words = talks.length <= 6 && width >= 600;
  const taken = [];
  for (const one of drawn) arrow(paper, one, { x, y, colour: colourOf(colours, one.txid), chosen, words, taken, limit: width, silent, onPoint });
  for (const talk of talks) {
    const first = drawn.find((one) => one.txid === talk.txid);
    if (!first) continue;
    const place = { x: x(first.begin), y: y(first.from) - 9 };
    while (taken.some((t) => Math.abs(t.x - place.x) < 46 && Math.abs(t.y - place.y) < 11) && place.y > 12) place.y -= 12;
    taken.push(place);
    const faint = chosen && chosen.txid !== talk.txid ? " faint" : "";
    make("text", { x: place.x, y: place.y, class: "name " + colourOf(colours, talk.txid) + faint }, paper, nameOf(talk.txid));
  }
  make("text", { x: width - 8, y: height - 8, "text-anchor": "end" }, paper, whole);
  svg.replaceChildren(paper);
  return drawn.sort((a, b) => a.begin - b.begin);
}

function arrow(paper, one, { x, y, colour, chosen, words, taken, limit, silent, onPoint }) {
  const x1 = x(one.begin), y1 = y(one.from), lost = one.end === null;
  let x2 = lost ? x1 + 14 : x(one.end), y2 = y(one.to);
  if (lost) y2 = y1 + (y2 - y1) / 2;
  const faint = chosen && chosen.txid !== one.txid ? " faint" : "";
  const mine = chosen && chosen.line === one.line && chosen.begin === one.begin ? " chosen" : "";
  const group = make("g", { class: `talk ${colour}${faint}${mine}${lost ? " half" : ""}`, "data-kind": one.kind }, paper);
  make("title", {}, group, one.line);
  if (one.from === one.to) {
    make("circle", { cx: x1, cy: y1, r: mine ? 6 : 4, class: "dot" }, group);
    make("circle", { cx: x1, cy: y1, r: 10, class: "hit" }, group);
  } else {
    const length = Math.hypot(x2 - x1, y2 - y1) || 1, dx = (x2 - x1) / length, dy = (y2 - y1) / length;
    make("path", { d: `M${x1} ${y1}L${x2 - 5 * dx} ${y2 - 5 * dy}`, class: "line " + kindClass(one.kind) }, group);
    if (lost && !silent.has(one.to)) {
      group.classList.add("unheard");  // the other side took no note of it
    } else if (lost || one.kind === "reject") {
      const cx = x2 - (lost ? 0 : 7) * dx, cy = y2 - (lost ? 0 : 7) * dy;
      make("path", { d: `M${cx - 4} ${cy - 4}l8 8m0 -8l-8 8`, class: "cross" }, group);
    } else {
      const bx = x2 - 9 * dx, by = y2 - 9 * dy;
      make("path", { d: `M${x2} ${y2}L${bx - 4 * dy} ${by + 4 * dx}L${bx + 4 * dy} ${by - 4 * dx}Z`, class: "tip" }, group);
    }
    make("path", { d: `M${x1} ${y1}L${x2} ${y2}`, class: "hit" }, group);
    if (words && !faint) word(group, one, x1 + (x2 - x1) * 0.42, y1 + (y2 - y1) * 0.42, taken, limit);
  }
  group.addEventListener("pointerenter", () => onPoint(one, false));
  group.addEventListener("click", () => onPoint(one, true));
}

function word(group, one, x, y, taken, limit) {
  if (taken.some((other) => Math.abs(other.x - x) < 54 && Math.abs(other.y - y) < 12)) return;
  taken.push({ x, y });
  const late = x > limit - 70;
  make("text", { x: late ? x - 4 : x + 4, y: y + 3, class: "word", "text-anchor": late ? "end" : "start" }, group, one.kind.toUpperCase());
}

export function span(ms) {
  if (ms < 10) return ms.toFixed(1) + " ms";
  if (ms < 1000) return Math.round(ms) + " ms";
  if (ms < 60000) return (ms / 1000).toFixed(1) + " s";
  return Math.round(ms / 60000) + " min";
}
