// What a program does with Kysely, a query builder, and its dialect for libSQL. Argument: the URL.
import assert from "node:assert";
import { LibsqlDialect } from "@libsql/kysely-libsql";
import { Kysely } from "kysely";

const db = new Kysely({ dialect: new LibsqlDialect({ url: process.argv[2] }) });
await db.schema.dropTable("pet").ifExists().execute();
await db.schema
  .createTable("pet")
  .addColumn("id", "integer", (column) => column.primaryKey())
  .addColumn("name", "text", (column) => column.unique())
  .execute();
const { id } = await db.insertInto("pet").values({ name: "rex" }).returning("id").executeTakeFirstOrThrow();
await db.transaction().execute(async (transaction) => {
  await transaction.updateTable("pet").set({ name: "max" }).where("id", "=", id).execute();
});
await assert.rejects(
  db.transaction().execute(async (transaction) => {
    await transaction.deleteFrom("pet").execute();
    throw new Error("changed my mind");
  }),
  /changed my mind/,
);
assert.deepStrictEqual(await db.selectFrom("pet").select("name").execute(), [{ name: "max" }]);
await assert.rejects(db.insertInto("pet").values({ name: "max" }).execute(), /UNIQUE constraint failed/);
assert.ok((await db.introspection.getTables()).some((table) => table.name === "pet"));
await db.destroy();
console.log("done");
