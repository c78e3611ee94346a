// What a program for npm's sqlite3 does, with the class of examples/sqlite3.cjs. Argument: the URL.
const assert = require("node:assert");
const sqlite3 = require("./sqlite3.cjs").verbose();

function asked(object, method, ...values) {
  return new Promise((yes, no) => {
    object[method](...values, function (error, ...answer) {
      if (error) no(error);
      else yes(method === "run" ? [this.lastID, this.changes] : answer[0]);
    });
  });
}

async function main(url) {
  const db = await new Promise((yes, no) => {
    const made = new sqlite3.Database(url, sqlite3.OPEN_READWRITE, (error) => (error ? no(error) : yes(made)));
  });
  await asked(db, "exec", "DROP TABLE IF EXISTS called");
  await asked(db, "exec", "CREATE TABLE called(id INTEGER PRIMARY KEY, name TEXT UNIQUE, x); PRAGMA user_version");
  assert.deepStrictEqual(await asked(db, "run", "INSERT INTO called VALUES (?, ?, ?)", [1, "oak", 7]), [1, 1]);
  await asked(db, "run", "INSERT INTO called VALUES ($id, :n, @x)", { $id: 2, ":n": "elm", "@x": Buffer.from("ab") });
  await asked(db, "run", "INSERT INTO called VALUES (?, ?, ?)", 3, "ash", undefined);
  await asked(db, "run", "SELECT 1", undefined);
  assert.deepStrictEqual(await asked(db, "all", "SELECT x, typeof(x) AS t FROM called"), [
    { x: 7, t: "integer" }, { x: Buffer.from("ab"), t: "blob" }, { x: null, t: "null" },
  ]);
  const row = await asked(db, "get", "SELECT 1 AS a, 9007199254740993 AS big");
  row.a = row.big;
  assert.deepStrictEqual(row, { a: 9007199254740992, big: 9007199254740992 });
  assert.strictEqual(await asked(db, "get", "SELECT 1 WHERE 0"), undefined);
  assert.deepStrictEqual(await asked(db, "map", "SELECT id, name FROM called WHERE id < 3"), { 1: "oak", 2: "elm" });
  const seen = [];
  const each = (_, { id }) => seen.push(id);
  seen.push(await new Promise((yes) => db.each("SELECT id FROM called ORDER BY id", each, (_, count) => yes(count))));
  assert.deepStrictEqual(seen, [1, 2, 3, 3]);

  const message = "SQLITE_CONSTRAINT: UNIQUE constraint failed: called.name";
  const unique = { message, code: "SQLITE_CONSTRAINT", errno: 19 };
  await assert.rejects(asked(db, "run", "INSERT INTO called(name) VALUES ('oak')"), unique);
  await assert.rejects(asked(db, "prepare", "SELECT * FROM nowhere"), /^Error: SQLITE_ERROR: no such table: nowhere$/);
  const update = db.prepare("UPDATE called SET x = ? WHERE id = ?");
  assert.deepStrictEqual(await asked(update, "run", 8, 3), [3, 1]);
  await asked(update, "finalize");

  db.serialize(() => {
    db.run("BEGIN").run("DELETE FROM called").run("ROLLBACK");
  });
  assert.strictEqual((await asked(db, "get", "SELECT count(*) AS n FROM called")).n, 3);

  // No statement of a lost transaction runs outside of it.
  await asked(db, "run", "BEGIN");
  await asked(db, "run", "DELETE FROM called");
  db.stream.close();
  for (const sql of ["DELETE FROM called", "SAVEPOINT a", "ROLLBACK TO a"]) {
    await assert.rejects(asked(db, "run", sql), { code: "SQLITE_ABORT", errno: 4 });
  }
  await asked(db, "run", "ROLLBACK");
  assert.strictEqual((await asked(db, "get", "SELECT count(*) AS n FROM called")).n, 3);
  await asked(db, "run", "BEGIN");
  db.stream.close();
  await assert.rejects(asked(db, "run", "COMMIT"), { code: "SQLITE_ABORT" });
  await asked(db, "run", "INSERT INTO called(id) VALUES (9)");
  await asked(db, "close");
  console.log("done");
}

main(process.argv[2]);
