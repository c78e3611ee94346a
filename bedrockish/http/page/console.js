// A console for statements that read: what a person types is run as a stream, of which the first rows are shown.

import { ask, why } from "/page/login.js";
import { table } from "/page/tables.js";

const ROWS_MAX = 500, CELL_MAX = 2000, PATIENCE_MS = 60000;
const $ = (id) => document.getElementById(id);
let running = null;

// A number that this language would round is kept as it was written.
const exact = (_key, value, context) => (typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "") ? context.source : value);

function shown(value) {
  if (value === null) return ["NULL", "small"];
  if (typeof value === "object") return [value.base64 !== undefined ? `blob ${value.base64}`.slice(0, CELL_MAX) : value.float, "mono"];
  const text = String(value);
  return [text.length > CELL_MAX ? text.slice(0, CELL_MAX) + "…" : text, typeof value === "number" || /^-?\d{16,}$/.test(text) ? "num" : "wide pre"];
}

async function run() {
  running?.abort();
  const mine = running = new AbortController();
  const began = performance.now();
  say("running…", "");
  try {
    const answer = await ask(`/db/stream?read=${$("read").value}&timeout=30`, {
      method: "POST", body: JSON.stringify([$("sql").value]), headers: { "content-type": "application/json" },
    }, PATIENCE_MS);
    if (!answer.ok) throw new Error((await answer.json()).message);
    const { columns, rows, end } = await read(answer.body, mine.signal);
    if (mine !== running) return;
    if (end?.error) throw new Error(end.error.message);
    table($("result"), columns.map((name) => [name]), rows.map((row) => row.map(shown)), "no rows");
    const took = Math.round(performance.now() - began);
    say(end ? `${end.rows} ${end.rows === 1 ? "row" : "rows"}, ${took} ms` : `the first ${rows.length} rows, ${took} ms; there are more`, "good");
  } catch (error) {
    if (mine !== running) return;
    say(error.name === "AbortError" ? "stopped" : why(error), "bad");
    $("result").replaceChildren();  // the rows of the statement before are not its answer
  }
}

// Reads lines until there are enough; `end` is missing if more would have come.
async function read(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  signal.addEventListener("abort", () => reader.cancel());
  const rows = [];
  let columns = [], rest = "", end = null;
  while (rows.length < ROWS_MAX && !end) {
    const { done, value } = await reader.read();
    if (done) throw new Error(signal.aborted ? "stopped" : "the answer broke off; it is not whole");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const one = JSON.parse(line, exact);
      if (Array.isArray(one)) rows.push(one);
      else if (one.columns) columns = one.columns;
      else end = one;
    }
  }
  reader.cancel();
  if (rows.length > ROWS_MAX) end = null;
  return { columns, rows: rows.slice(0, ROWS_MAX), end };
}

function say(text, kind) {
  $("console-said").textContent = text;
  $("console-said").className = "small " + kind;
}

$("console").addEventListener("submit", (event) => { event.preventDefault(); run(); });
$("sql").addEventListener("keydown", (key) => {
  if (key.key === "Enter" && (key.ctrlKey || key.metaKey)) { key.preventDefault(); run(); }
});
$("stop").addEventListener("click", () => running?.abort());
