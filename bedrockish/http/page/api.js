// Draws the OpenAPI document of this node, with a form for each thing that can be asked. All text goes in as text.

import { ask, onLogin, why } from "/page/login.js";

const $ = (id) => document.getElementById(id);
const SHOWN_MAX = 100000;  // characters of an answer
const PATIENCE_MS = 60000;
const EXAMPLES = { "/db/command/{name}": "[]" };
const STATEMENTS = '["SELECT 1"]';

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// What a schema allows, in a word or two.
function kind(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const several = schema.anyOf ?? schema.oneOf;
  if (several) return several.map(kind).join(" or ");
  if (schema.type === "array" && schema.items) return `array of ${kind(schema.items)}`;
  const [least, most] = [schema.minimum, schema.maximum];
  const range = least !== undefined && most !== undefined && Math.abs(most) < 1e9 ? ` ${least} to ${most}` : "";
  return (schema.type ?? "anything") + range;
}

function table(titles, rows) {
  const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell, index) => make("td", { "data-title": titles[index], class: index === cells.length - 1 ? "wide" : "" }, cell))));
  return make("div", { class: "scroll" }, make("table", {}, head, ...body));
}

let number = 0;

function field(label, element) {
  element.id = `field-${++number}`;
  return make("p", { class: "field" }, make("label", { for: element.id }, label), element);
}

function operation(path, method, told) {
  const inputs = (told.parameters ?? []).map((one) => {
    const choices = one.schema.enum;
    const element = choices ? make("select", {}, make("option", { value: "" }, ""), ...choices.map((value) => make("option", {}, String(value)))) : make("input", { autocomplete: "off", spellcheck: "false" });
    if (one.required) element.required = true;
    return { ...one, element };
  });
  const body = told.requestBody ? make("textarea", { rows: "3", spellcheck: "false" }) : null;
  if (body) body.value = EXAMPLES[path] ?? STATEMENTS;
  const output = make("pre", { class: "answer", hidden: "", tabindex: "0", role: "region", "aria-label": "The answer" });
  const form = make("form", {}, ...inputs.map((one) => field(one.name, one.element)), ...(body ? [field("body", body)] : []), make("button", {}, "Send"), output);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    output.hidden = false;
    output.textContent = "…";
    try {
      output.textContent = await sent(path, method, inputs, body);
    } catch (error) {
      output.textContent = why(error);
    }
  });
  const summary = make("summary", {}, make("b", { class: "method" }, method.toUpperCase()), " ", make("code", {}, path), " ", make("span", { class: "small" }, told.summary));
  const parameters = inputs.map((one) => [make("code", {}, one.name), one.in, kind(one.schema), one.description ?? ""]);
  const answers = Object.entries(told.responses).map(([status, one]) => [make("code", {}, status), Object.values(one.content ?? {}).map((content) => kind(content.schema)).join(", "), one.description]);
  return make("details", { class: "operation", "data-operation": told.operationId }, summary, ...(parameters.length ? [table(["name", "where", "what", "meaning"], parameters)] : []), table(["status", "answer", "meaning"], answers), form);
}

// Sends what a form has, and returns the answer as text. An answer without end is cut where nobody reads on.
async function sent(path, method, inputs, body) {
  const given = inputs.filter((one) => one.element.value !== "");
  let place = path;
  const options = new URLSearchParams(), headers = {};
  for (const { name, in: where, element } of given) {
    if (where === "path") place = place.replace(`{${name}}`, encodeURIComponent(element.value));
    else if (where === "header") headers[name] = element.value;
    else options.append(name, element.value);
  }
  if (body) headers["content-type"] = "application/json";
  const answer = await ask(place + (options.size ? `?${options}` : ""), { method: method.toUpperCase(), headers, ...(body ? { body: body.value } : {}) }, PATIENCE_MS);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", over = false;
  while (!over && text.length <= SHOWN_MAX) {
    const { done, value } = await reader.read();
    over = done;
    text += value ?? "";
  }
  if (!over) reader.cancel();
  const shown = text.length > SHOWN_MAX ? text.slice(0, SHOWN_MAX) + "\n… and more" : text;
  return `${answer.status} ${answer.headers.get("content-type")}\n\n${pretty(shown)}`;
}

// Indented, unless that would change a number: those of SQLite have 64 bits, those of this language 53.
function pretty(text) {
  if (/\d{16}/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function shape(name, schema) {
  return make("details", { id: name }, make("summary", {}, make("code", {}, name), " ", make("span", { class: "small" }, schema.description ?? "")), make("pre", { class: "answer" }, JSON.stringify(schema, null, 2)));
}

async function draw() {
  try {
    const answer = await ask("/openapi.json");
    const document_ = await answer.json();
    if (!answer.ok) throw new Error(document_.message);
    $("version").textContent = `API ${document_.info.version}`;
    $("about").textContent = document_.info.description;
    const found = Object.entries(document_.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, told]) => operation(path, method, told)));
    $("operations").replaceChildren(...found);
    $("shapes").replaceChildren(...Object.entries(document_.components.schemas).map(([name, schema]) => shape(name, schema)));
    $("state").textContent = `${found.length} operations`;
    $("state").className = "good";
  } catch (error) {
    $("state").textContent = why(error);
    $("state").className = "bad";
  }
}

onLogin(draw);
draw();
