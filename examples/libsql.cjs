// npm's libsql at a node, for programs that are written for better-sqlite3: TypeORM, Knex and their like.
//
// By HTTP, a statement of libsql ends the stream, and with it an open transaction, unless it was prepared in that
// transaction; it binds no values by name, and its errors lack their code. This class prepares a statement again if a
// transaction has begun or ended since, binds values by their place, sends PRAGMA foreign_keys = OFF inside the next
// transaction, where a node expects it, and reads the code from the text of an error.
const Libsql = require("libsql");

const KEYS = /^\s*PRAGMA\s+foreign_keys\s*=\s*(\w+)\s*;?\s*$/i;
const NAMES = /'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|\/\*[^]*?\*\/|[:@$](\w+)/g;

function withCode(work) {
  try {
    return work();
  } catch (error) {
    error.code ||= /code: "(\w+)"/.exec(error.message)?.[1] ?? "SQLITE_ERROR";
    throw error;
  }
}

function isNamed(value) {
  return Object.prototype.toString.call(value) === "[object Object]";
}

class Statement {
  constructor(database, source) {
    Object.assign(this, { database, source, keys: KEYS.exec(source)?.[1], modes: {} });
    this.names = [...new Set([...source.matchAll(NAMES)].flatMap(([, name]) => name ?? []))];
    this.prepare();
  }

  prepare() {
    this.wasIn = this.database.inTransaction;
    this.inner = withCode(() => this.database.prepareNow(this.source));
  }

  call(method, values) {
    const { database, keys, modes, names } = this;
    if (keys !== undefined && !database.inTransaction) {
      database.keysOff = /^(off|0|no|false)$/i.test(keys);
      return { run: { changes: 0, lastInsertRowid: 0 }, get: undefined }[method] ?? [];
    }
    if (database.inTransaction !== this.wasIn) this.prepare();
    for (const mode in modes) this.inner[mode](modes[mode]);
    if (names.length && isNamed(values[0])) values = [names.map((name) => values[0][name])];
    const result = withCode(() => this.inner[method](...values));
    if (database.inTransaction && !this.wasIn) database.afterBegin();
    return result;
  }

  run(...values) { return this.call("run", values); }
  get(...values) { return this.call("get", values); }
  all(...values) { return this.call("all", values); }
  iterate(...values) { return this.call("iterate", values); }
  raw(on = true) { this.modes.raw = on; return this; }
  pluck(on = true) { this.modes.pluck = on; return this; }
  safeIntegers(on = true) { this.modes.safeIntegers = on; return this; }
  columns() { return this.inner.columns(); }
  get reader() { return this.inner.reader; }
}

class Database extends Libsql {
  keysOff = false; // the value of PRAGMA foreign_keys for the next transaction

  prepareNow(source) { return super.prepare(source); }
  prepare(source) { return new Statement(this, source); }
  afterBegin() { if (this.keysOff) super.exec("PRAGMA foreign_keys = OFF"); }

  exec(source) {
    const wasIn = this.inTransaction;
    if (KEYS.test(source) && !wasIn) this.prepare(source).run();
    else withCode(() => super.exec(source));
    if (this.inTransaction && !wasIn) this.afterBegin();
    return this;
  }
}

module.exports = Database;
module.exports.SqliteError = Libsql.SqliteError;
