// What an ORM for better-sqlite3 does, with npm's libsql in the class of examples/libsql.cjs. Argument: the URL.
const assert = require("node:assert");
const Database = require("./libsql.cjs");

const db = new Database(process.argv[2]);
db.exec("DROP TABLE IF EXISTS leaf; DROP TABLE IF EXISTS tree");
db.exec("CREATE TABLE tree(id INTEGER PRIMARY KEY, name TEXT UNIQUE)");
db.exec("CREATE TABLE leaf(tree REFERENCES tree(id) ON DELETE CASCADE)");

const insert = db.prepare("INSERT INTO tree VALUES (:id, @name) -- prepared :before BEGIN");
const names = db.prepare("SELECT name FROM tree ORDER BY name").pluck();
const plant = db.transaction((...trees) => trees.map((tree) => insert.run(tree).changes));
assert.deepStrictEqual(plant.immediate({ name: "oak", id: 1 }, { name: "elm", id: 2 }), [1, 1]);
assert.throws(() => plant({ name: "ash", id: 3 }, { name: "oak", id: 4 }), { code: "SQLITE_CONSTRAINT_UNIQUE" });
assert.deepStrictEqual(names.all(), ["elm", "oak"]);
assert.strictEqual(db.inTransaction, false);
db.prepare("INSERT INTO leaf VALUES (?)").run(1);

// A table is rebuilt as ORMs do it: the rows that refer to it stay.
db.prepare("PRAGMA foreign_keys = OFF").run();
db.prepare("BEGIN").run();
for (const sql of [
  "CREATE TABLE new(id INTEGER PRIMARY KEY, name TEXT, height DEFAULT 7)",
  "INSERT INTO new(id, name) SELECT id, name FROM tree",
  "DROP TABLE tree",
  "ALTER TABLE new RENAME TO tree",
  "COMMIT",
]) db.prepare(sql).run();
db.pragma("foreign_keys = ON");
assert.deepStrictEqual(db.prepare("SELECT height, tree FROM tree JOIN leaf ON tree = id").raw().get(), [7, 1]);
assert.throws(() => db.prepare("INSERT INTO leaf VALUES (9)").run(), { code: "SQLITE_CONSTRAINT_FOREIGNKEY" });
assert.throws(() => db.prepare("SELECT nothing FROM nowhere"), { code: "SQLITE_ERROR" });
assert.strictEqual(db.prepare("DELETE FROM tree WHERE name = $name").run({ name: "oak" }).changes, 1);
assert.deepStrictEqual(db.prepare("SELECT count(*) FROM leaf").raw().get(), [0]);
db.close();
console.log("done");
