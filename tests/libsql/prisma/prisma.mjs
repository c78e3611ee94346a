// What a program does with Prisma and its adapter for libSQL. Argument: the URL.
import assert from "node:assert";
import { createClient } from "@libsql/client";
import { PrismaLibSql } from "@prisma/adapter-libsql";
import { PrismaClient } from "./generated/index.js";

const url = process.argv[2];
const client = createClient({ url });
await client.executeMultiple(`
  DROP TABLE IF EXISTS Post;
  DROP TABLE IF EXISTS Person;
  CREATE TABLE Person(id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, email TEXT NOT NULL UNIQUE, name TEXT);
  CREATE TABLE Post(id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, authorId INTEGER NOT NULL
    REFERENCES Person(id) ON DELETE RESTRICT ON UPDATE CASCADE);
`);
client.close();

const prisma = new PrismaClient({ adapter: new PrismaLibSql({ url }) });
const ann = await prisma.person.create({
  data: { email: "ann@x", posts: { create: [{ title: "a" }, { title: "b" }] } },
  include: { posts: true },
});
assert.deepStrictEqual(ann.posts.map((post) => post.title), ["a", "b"]);
await prisma.person.update({ where: { email: "ann@x" }, data: { name: "Ann" } });
// Of a server the adapter has no number of an error, so these are P2039, with the text; of a file P2002 and P2003.
await assert.rejects(prisma.person.create({ data: { email: "ann@x" } }), /unique constraint failed/i);
await assert.rejects(prisma.person.delete({ where: { id: ann.id } }), /foreign key constraint/i);

const [made, count] = await prisma.$transaction([
  prisma.post.create({ data: { title: "c", authorId: ann.id } }),
  prisma.post.count(),
]);
assert.strictEqual(count, 3);
await prisma.$transaction(async (tx) => {
  await tx.post.update({ where: { id: made.id }, data: { title: "d" } });
});
await assert.rejects(
  prisma.$transaction(async (tx) => {
    await tx.post.deleteMany();
    throw new Error("changed my mind");
  }),
  /changed my mind/,
);
const found = await prisma.person.findMany({
  where: { posts: { some: { title: { contains: "d" } } } },
  include: { _count: { select: { posts: true } } },
});
assert.deepStrictEqual(found.map((one) => [one.name, one._count.posts]), [["Ann", 3]]);
assert.strictEqual(Number((await prisma.$queryRaw`SELECT count(*) AS n FROM Post`)[0].n), 3);
await prisma.$disconnect();
console.log("done");
