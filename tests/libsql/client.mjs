// What a program does with @libsql/client, told line by line for the test to compare. Argument: the URL.
import assert from "node:assert";
import { createClient } from "@libsql/client";

const client = createClient({ url: process.argv[2], authToken: process.argv[3] || undefined });
// A file's errors have the number of the kind alone as their code, a server's say which constraint it was.
const UNIQUE = client.protocol === "file" ? "SQLITE_CONSTRAINT" : "SQLITE_CONSTRAINT_UNIQUE";
const count = async () => Number((await client.execute("SELECT count(*) AS n FROM t")).rows[0].n);
const fails = async (promise, code) => {
  await assert.rejects(promise, (error) => {
    assert.strictEqual(error.code, code, `${error.code}: ${error.message}`);
    return true;
  });
};

await client.execute("CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, x TEXT UNIQUE, y REAL, z BLOB)");
await client.execute("DELETE FROM t");

const made = await client.execute({
  sql: "INSERT INTO t(id, x, y, z) VALUES (?, ?, ?, ?)",
  args: [42, "ä", -0.5, new Uint8Array([0, 1, 255])],
});
assert.strictEqual(made.rowsAffected, 1);
assert.strictEqual(made.lastInsertRowid, 42n);
const [row] = (await client.execute("SELECT x, y, z, NULL AS n FROM t")).rows;
assert.deepStrictEqual([row.x, row.y, [...new Uint8Array(row.z)], row.n], ["ä", -0.5, [0, 1, 255], null]);

const batch = await client.batch(
  [{ sql: "INSERT INTO t(x) VALUES (:name)", args: { name: "b" } }, "SELECT id, x, y, z FROM t WHERE x = 'b'"],
  "write",
);
assert.deepStrictEqual(batch[1].columns, ["id", "x", "y", "z"]);
assert.deepStrictEqual(batch[1].columnTypes, ["INTEGER", "TEXT", "REAL", "BLOB"]);
assert.strictEqual(batch[1].rows[0].x, "b");
await client.batch(["SELECT 1", "SELECT 2"], "read");

await fails(client.batch(["INSERT INTO t(x) VALUES ('c')", "INSERT INTO nowhere VALUES (1)"], "write"), "SQLITE_ERROR");
await fails(client.batch(["INSERT INTO t(x) VALUES ('c')", "INSERT INTO t(x) VALUES ('b')"]), UNIQUE);
await fails(client.execute("INSERT INTO t(x) VALUES ('b')"), UNIQUE);
await fails(client.execute("SELEC 1"), "SQLITE_ERROR");
assert.strictEqual(await count(), 2);

const back = await client.transaction("write");
await back.execute("INSERT INTO t(x) VALUES ('back')");
assert.strictEqual(Number((await back.execute("SELECT count(*) AS n FROM t")).rows[0].n), 3);
await back.rollback();
assert.strictEqual(await count(), 2);

const kept = await client.transaction("write");
await kept.batch(["INSERT INTO t(x) VALUES ('k1')", "INSERT INTO t(x) VALUES ('k2')"]);
await fails(kept.execute("INSERT INTO t(x) VALUES ('k1')"), UNIQUE);
await kept.commit();
assert.strictEqual(await count(), 4);

const reader = await client.transaction("read");
assert.strictEqual(Number((await reader.execute("SELECT count(*) AS n FROM t")).rows[0].n), 4);
reader.close();

await client.executeMultiple("INSERT INTO t(x) VALUES ('m1'); INSERT INTO t(x) VALUES ('m;2');");
assert.strictEqual(await count(), 6);

await client.migrate(["CREATE TABLE IF NOT EXISTS child(id INTEGER PRIMARY KEY, t INTEGER REFERENCES t(id))"]);
const many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) SELECT i FROM n";
assert.strictEqual((await client.execute(many)).rows.length, 5000);
client.close();
console.log("done");
