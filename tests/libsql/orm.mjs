// What a program does with Drizzle, which knows libSQL's client only. Argument: the URL.
import assert from "node:assert";
import { createClient } from "@libsql/client";
import { eq, sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/libsql";
import { integer, sqliteTable, text } from "drizzle-orm/sqlite-core";

const client = createClient({ url: process.argv[2] });
const db = drizzle(client);
const users = sqliteTable("users", { id: integer("id").primaryKey(), name: text("name").notNull() });

await db.run(sql`CREATE TABLE IF NOT EXISTS users(id INTEGER PRIMARY KEY, name TEXT NOT NULL)`);
await db.delete(users);
const [ann] = await db.insert(users).values({ name: "ann" }).returning();
await db.transaction(async (tx) => {
  await tx.update(users).set({ name: "bob" }).where(eq(users.id, ann.id));
});
assert.strictEqual((await db.select().from(users).where(eq(users.id, ann.id)))[0].name, "bob");
await assert.rejects(
  db.transaction(async (tx) => {
    await tx.delete(users);
    throw new Error("changed my mind");
  }),
);
assert.strictEqual((await db.select().from(users)).length, 1);
await db.batch([db.delete(users), db.insert(users).values({ name: "eve" })]);
assert.deepStrictEqual((await db.select().from(users)).map((user) => user.name), ["eve"]);
client.close();
console.log("done");
