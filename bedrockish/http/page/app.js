// Asks one node once a second for the whole cluster and shows the answer. All text goes in as text, never as HTML.

import { heard, start } from "/page/activity.js";
import "/page/console.js";
import { ask, onLogin, why } from "/page/login.js";
import { number, table } from "/page/tables.js";
import { choose, colourOf, draw, offsets, pair, shortName, span } from "/page/diagram.js";

const PERIOD_MS = 1000, KEPT_EVENTS = 6000, POINTS = 90, SHOWN = 12, BEHIND = 200, DOUBT_MS = 1000;
const $ = (id) => document.getElementById(id);
const seen = new Map();  // node -> {run, last}
let events = [];         // {node, event} of all nodes, by time
let before = null;       // the counts of the last answer, for rates
let lost = "", heardAt = 0;  // why this node cannot be asked, and when it last answered
let cluster = null, paused = false, chosen = null, pinned = false, drawn = [], timer = 0, failures = 0, latest = 0;
const rates = [], conflictRates = [], perNode = new Map(), conflicts = new Map(), commits = new Map(), places = new Map();
const nameOf = (txid) => places.get(txid) ?? shortName(txid);  // who has committed is called by its place: A17

// --- asking ---

async function look() {
  const after = [...seen].map(([node, one]) => `${node}:${one.last}`).join(",");
  const answer = await ask("/cluster?after=" + after);
  if (!answer.ok) throw new Error((await answer.json()).message);
  return answer.json();
}

async function poll() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const found = await look();
    failures = 0;
    lost = "";
    heardAt = Date.now();
    take(found);
    say(paused ? "paused" : "live", paused ? "warn" : "good");
  } catch (error) {
    failures += 1;
    say(why(error), "bad");
    if (cluster) {
      lost = why(error);
      showSummary();
    }
  }
  timer = setTimeout(poll, failures > 5 ? 4 * PERIOD_MS : PERIOD_MS);
}

function say(text, kind) {
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").className = kind;
}

function take(found) {
  cluster = found;
  latest = found.nodes[found.node].events.now_ms;
  const now = performance.now();
  for (const [node, one] of Object.entries(found.nodes)) {
    if (!one.events) continue;
    const known = seen.get(node);
    const anew = known && known.run !== one.events.run;
    if (!known || !anew) for (const event of one.events.events) note(node, event);
    // After a restart numbers begin anew; what this answer has was asked with a number of the old process.
    seen.set(node, { run: one.events.run, last: anew ? 0 : one.events.last });
  }
  events = events.sort((a, b) => a.event[1] - b.event[1]).slice(-KEPT_EVENTS);
  measure(found, now);
  $("cluster").textContent = `${found.cluster === "bedrockish" ? "" : `${found.cluster}, `}seen from ${found.node}`;
  document.title = `${found.cluster} · bedrockish`;
  heard(Object.fromEntries(Object.entries(found.nodes).map(([node, one]) => [node, one.status?.safe_lag_ms])));
  showSummary();
  showTroubles();
  showTiles();
  showNodes();
  showConflicts();
  showPending();
  showCommits();
  if (!paused) showDiagram();
}

function note(node, event) {
  events.push({ node, event });
  const [, at, kind, txid, from, to, line, more] = event;
  if (kind === "reject") {
    const key = [txid, more.other, more.object, more.key, more.reason].join(" ");
    if (!conflicts.has(key)) conflicts.set(key, { at, txid, by: from, at_: to, ...more });
    while (conflicts.size > 200) conflicts.delete(conflicts.keys().next().value);
  }
  if (kind === "apply" && !commits.has(more.place)) {
    commits.set(more.place, { at, txid, line });
    places.set(txid, more.place);
    if (commits.size > 500) {
      const [oldest, one] = commits.entries().next().value;
      commits.delete(oldest);
      places.delete(one.txid);
    }
  }
}

function measure(found, now) {
  const counts = new Map();
  for (const [node, one] of Object.entries(found.nodes)) {
    if (one.status) counts.set(node, { led: one.status.counts.commits_led ?? 0, met: one.status.counts.rejected_for ?? 0, up: one.status.uptime_ms, now });
  }
  let rate = 0, met = 0, known = false;
  for (const [node, one] of counts) {
    const old = before?.get(node);
    if (!old || one.up < old.up) continue;
    known = true;
    const mine = (one.led - old.led) / ((one.now - old.now) / 1000);
    perNode.set(node, mine);
    rate += mine;
    met += (one.met - old.met) / ((one.now - old.now) / 1000);
  }
  for (const node of perNode.keys()) if (!counts.has(node)) perNode.set(node, 0);
  before = new Map([...(before ?? []), ...counts]);
  if (!known) return;
  rates.push(rate);
  conflictRates.push(met);
  if (rates.length > POINTS) { rates.shift(); conflictRates.shift(); }
}

// --- showing ---

function showTiles() {
  if (rates.length) {
    $("rate").textContent = number(rates.at(-1));
    $("conflict-rate").textContent = number(conflictRates.at(-1));
  }
  spark($("rate-line"), rates);
  spark($("conflict-line"), conflictRates);
  const lags = Object.entries(cluster.nodes).map(([name, one]) => [one.status?.safe_lag_ms, name]).filter(([lag]) => lag != null);
  const [most, at] = lags.sort(([a], [b]) => b - a)[0] ?? [];
  $("lag").textContent = most === undefined ? "–" : span(most);
  $("lag").className = "number" + (most > 10000 ? " bad" : "");
  $("lag-at").textContent = at && lags.length > 1 ? `at ${at}, the node furthest behind` : "";
}

function spark(svg, values) {
  svg.setAttribute("viewBox", `0 0 ${POINTS - 1} 24`);
  svg.setAttribute("preserveAspectRatio", "none");
  const top = Math.max(1, ...values);
  const points = values.map((value, index) => `${POINTS - values.length + index},${23 - 22 * (value / top)}`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.join(" "));
  svg.replaceChildren(line);
}

// In a sentence: is the cluster up, and can anything be committed?
function summary() {
  if (lost) {
    const seconds = Math.round((Date.now() - heardAt) / 1000);
    return [`${cluster.node} does not answer this page. Everything below is ${seconds} s old; open the page of another node.`, "bad"];
  }
  const facts = facts_(), names = Object.keys(cluster.nodes), quorum = quorum_();
  const away = names.filter((name) => !cluster.nodes[name].status), voters = names.filter((name) => facts[name]?.role !== "learner");
  const left = voters.filter((name) => !away.includes(name));
  const of = `${left.length} of ${voters.length} voters ${left.length === 1 ? "answers" : "answer"}, and ${quorum} ${quorum === 1 ? "is" : "are"} needed`;
  if (left.length < quorum) return [`Nothing can be committed: ${of}.`, "bad"];
  if (away.length) return [`${away.join(" and ")} ${away.length === 1 ? "does" : "do"} not answer. Commits go on: ${of}.`, "warn"];
  const ill = names.filter((name) => cluster.nodes[name].not_ready?.length);
  if (ill.length) return [`All nodes answer, and ${ill.join(" and ")} ${ill.length === 1 ? "takes" : "take"} no requests.`, "warn"];
  const up = names.length === 1 ? "The only node is up." : `All ${names.length} nodes are up.`;
  return troubles().length ? [`${up} Something needs attention.`, "warn"] : [up, "good"];
}

// The troubles of all nodes as their status tells them; one that several nodes tell is shown once.
function troubles() {
  const found = new Map();
  for (const [name, one] of Object.entries(cluster.nodes)) {
    for (const trouble of one.status?.troubles ?? []) {
      const key = trouble.code + trouble.text.replace(/[0-9.]+/g, "#");
      const old = found.get(key) ?? { ...trouble, by: [] };
      found.set(key, { ...old, useless: old.useless || trouble.useless, by: [...old.by, name] });
    }
  }
  return [...found.values()].sort((a, b) => b.useless - a.useless);
}

function showTroubles() {
  const found = troubles();
  $("wrong").hidden = !found.length;
  const rows = found.map((one) => {
    const row = document.createElement("li");
    row.className = one.useless ? "grave" : "mild";
    const head = document.createElement("strong"), told = document.createElement("span"), todo = document.createElement("p");
    head.textContent = one.text;
    told.textContent = `  ${one.code}, told by ${one.by.join(", ")}`;
    told.className = "small";
    todo.textContent = `To do: ${one.do}`;
    row.append(head, told, todo);
    return row;
  });
  if ($("troubles").textContent !== rows.map((row) => row.textContent).join("")) $("troubles").replaceChildren(...rows);
}

function showSummary() {
  const [text, kind] = summary();
  if ($("summary").textContent !== text) $("summary").textContent = text;
  $("summary").className = kind;
  $("main").classList.toggle("stale", Boolean(lost));
}

const quorum_ = () => Math.max(1, ...Object.values(cluster.nodes).map((one) => one.status?.quorum ?? 0));

function showNodes() {
  const names = Object.keys(cluster.nodes), leaders = leadersOf();
  const facts = facts_(), vectors = names.map((name) => cluster.nodes[name].status?.applied ?? facts[name]?.applied ?? {});
  const newest = (leader) => Math.max(0, ...vectors.map((vector) => vector[leader] ?? 0));
  const rows = names.map((name) => {
    const one = cluster.nodes[name], status = one.status;
    const applied = status?.applied ?? facts[name]?.applied ?? {};
    const behind = leaders.reduce((sum, leader) => sum + newest(leader) - (applied[leader] ?? 0), 0);
    const trouble = one.error ?? one.not_ready?.join("; ");
    const level = status ? `${status.version}, level ${status.level}` : "";
    return [
      [name],
      trouble ? [trouble, "bad wide"] : [status.mode === "serving" ? "up" : status.mode, status.mode === "serving" ? "good" : "warn"],
      [facts[name]?.role ?? ""],
      [status ? (behind ? `${number(behind)} ${behind === 1 ? "commit" : "commits"}` : "nothing") : "", behind > BEHIND ? "bad" : ""],
      [status ? number(perNode.get(name) ?? 0) : "", "num"],
      [status ? status.in_flight : "", "num"],
      [status?.safe_lag_ms == null ? "" : span(status.safe_lag_ms), "num"],
      [level],
      [status ? span(status.uptime_ms) : "", "num"],
    ];
  });
  table($("nodes"), [["node"], ["state"], ["role"], ["behind"], ["commits led per second", "num"], ["being decided", "num"], ["safe time behind", "num"], ["release"], ["runs for", "num"]], rows, "no nodes");
}

const facts_ = () => Object.values(cluster.nodes).find((one) => one.status)?.status.nodes ?? {};

function leadersOf() {
  const found = new Set(Object.keys(cluster.nodes));
  for (const one of Object.values(cluster.nodes)) for (const leader of Object.keys(one.status?.applied ?? {})) found.add(leader);
  return [...found].sort();
}

function clock(ms) {
  const time = new Date(ms);
  return time.toTimeString().slice(0, 8) + "." + String(time.getMilliseconds()).padStart(3, "0");
}

function showConflicts() {
  const rows = [...conflicts.values()].sort((a, b) => b.at - a.at).slice(0, SHOWN).map((one) => [
    [clock(one.at)],
    [one.object ?? ""],
    [one.key ?? "", "mono"],
    [shortName(one.txid) + (one.other ? " against " + nameOf(one.other) : ""), "mono"],
    [one.reason === "FOR" ? `${one.by} rejects` : `${one.by}: ${one.reason.replaceAll("_", " ").toLowerCase()}`],
  ]);
  table($("conflicts"), [["when"], ["table or index"], ["key"], ["loser and winner"], ["told by"]], rows, "none since this page was opened");
}

function pending() {
  const found = new Map();
  for (const [node, one] of Object.entries(cluster.nodes)) {
    for (const doubt of one.status?.in_doubt ?? []) {
      const old = found.get(doubt.txid) ?? { ...doubt, at: [] };
      found.set(doubt.txid, {
        ...old, at: [...old.at, node], age_ms: Math.max(old.age_ms, doubt.age_ms),
        recovered_by: old.recovered_by ?? doubt.recovered_by,
      });
    }
  }
  return [...found.values()].filter((one) => one.age_ms > DOUBT_MS).sort((a, b) => b.age_ms - a.age_ms);
}

function showPending() {
  const stuck = $("summary").className === "bad";
  const rows = pending().slice(0, SHOWN).map((one) => [
    [shortName(one.txid), "mono"], [one.leader], [span(one.age_ms), one.age_ms > 3000 ? "num bad" : "num"],
    [one.at.join(" ")], [one.recovered_by ? "recovered by " + one.recovered_by : stuck ? "waits for a quorum" : "its leader decides it"],
  ]);
  table($("pending"), [["transaction"], ["led by"], ["for", "num"], ["known at"], ["what happens"]], rows, "none");
}

function showCommits() {
  const rows = [...commits.values()].sort((a, b) => b.at - a.at).slice(0, SHOWN);
  $("commits").replaceChildren(...rows.map((one) => item(one.line)));
}

function item(text, kind) {
  const row = document.createElement("li");
  row.textContent = text;
  if (kind) row.className = kind;
  return row;
}

// --- the diagram ---

let talks = [], colours = [];

function showDiagram() {
  const others = new Map(events.filter(({ event }) => event[7].other).map(({ event }) => [event[3], event[7].other]));
  const arrows = pair(events).map((one) => ({ ...one, other: one.kind === "reject" ? others.get(one.txid) : undefined }));
  talks = choose(arrows, Number($("count").value), $("show").value === "conflicts", latest, silent());
  const now = talks.map((talk) => talk.txid);
  colours = [...colours.filter((txid) => now.includes(txid)), ...now.filter((txid) => !colours.includes(txid))];
  skew = offsets(Object.keys(cluster.nodes), arrows, cluster.node);
  if (chosen && !now.includes(chosen.txid)) { chosen = null; pinned = false; }
  redraw();
}

let skew = {};
const silent = () => new Set(Object.keys(cluster.nodes).filter((node) => cluster.nodes[node].error));

function redraw() {
  if (!cluster) return;
  const nodes = Object.keys(cluster.nodes);
  drawn = draw($("diagram"), { nodes, silent: silent(), talks, colours, skew, chosen, nameOf, onPoint: point });
  const talk = talks.find((one) => one.txid === chosen?.txid);
  $("said").textContent = chosen?.line ?? "";
  const lines = drawn.filter((one) => one.txid === talk?.txid);
  $("talk").replaceChildren(...lines.map((one) => item(`${clock(one.begin)}  ${one.line}`, colourOf(colours, one.txid) + (one === match() ? " chosen" : ""))));
}

const match = () => drawn.find((one) => chosen && one.line === chosen.line && one.begin === chosen.begin);

function point(one, click) {
  if (click) {
    pinned = !(pinned && chosen?.line === one.line);
    if (!paused && pinned) pause(true);
  } else if (pinned) return;
  if (!click && chosen?.line === one.line && chosen.begin === one.begin) return;
  chosen = one;
  // Drawing anew takes the pointed element away, which would be pointed at again: only change what is chosen.
  if (click) redraw();
  else $("said").textContent = one.line;
}

function pause(on) {
  paused = on;
  $("pause").setAttribute("aria-pressed", String(on));
  $("pause").textContent = on ? "Go on" : "Pause";
  if (!on) { pinned = false; chosen = null; if (cluster) showDiagram(); }
  say(on ? "paused" : "live", on ? "warn" : "good");
}

$("diagram").addEventListener("keydown", (key) => {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key.key];
  if (key.key === "Escape") { chosen = null; pinned = false; redraw(); return; }
  if (!step || !drawn.length) return;
  key.preventDefault();
  if (!paused) pause(true);
  const [across, along] = step, shown = talks.filter((talk) => drawn.some((one) => one.txid === talk.txid));
  let place = shown.findIndex((talk) => talk.txid === chosen?.txid);
  if (place < 0) { place = across < 0 ? shown.length - 1 : 0; chosen = null; }
  else if (across) { place = (place + across + shown.length) % shown.length; chosen = null; }
  const said = drawn.filter((one) => one.txid === shown[place].txid);
  const now = chosen ? said.findIndex((one) => one.line === chosen.line && one.begin === chosen.begin) : -1;
  chosen = said[chosen ? (now + along + said.length) % said.length : 0];
  pinned = true;
  redraw();
});
$("pause").addEventListener("click", () => pause(!paused));
for (const id of ["show", "count"]) $(id).addEventListener("change", () => { chosen = null; pinned = false; if (cluster) showDiagram(); });
onLogin(() => { poll(); start(); });
addEventListener("resize", redraw);
document.addEventListener("visibilitychange", poll);
poll();
start();
