// Asks the node as the person who is here. Who that is, is kept until the tab is closed, and the page alone sends it.

const $ = (id) => document.getElementById(id);

// Asks, and returns the response. A node that wants to know who asks brings up the form.
export async function ask(path, options = {}, patience_ms = 5000) {
  const login = sessionStorage.getItem("login");
  const answer = await fetch(path, {
    ...options,
    headers: { ...(login ? { authorization: login } : {}), ...options.headers },
    credentials: "omit",  // the page asks by itself; the browser shall not
    signal: AbortSignal.timeout(patience_ms),
  });
  if (answer.status === 401) {
    $("login").hidden = false;
    $("main").hidden = true;
    throw new Error(login ? (await answer.json()).message : "a login is needed");
  }
  $("login").hidden = true;
  $("main").hidden = false;
  return answer;
}

// Sends an object as JSON.
export const send = (path, body, patience_ms) =>
  ask(path, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } }, patience_ms);

// What to say of a request that failed.
export const why = (error) =>
  (["TimeoutError", "AbortError"].includes(error.name) || error instanceof TypeError ? "this node does not answer" : error.message);

export function onLogin(then) {
  $("login").addEventListener("submit", (event) => {
    event.preventDefault();
    const utf8 = String.fromCharCode(...new TextEncoder().encode($("user").value + ":" + $("token").value));
    sessionStorage.setItem("login", $("user").value ? "Basic " + btoa(utf8) : "Bearer " + $("token").value);
    $("token").value = "";
    then();
  });
}
