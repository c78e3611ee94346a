// npm's sqlite3 at a node, for programs that are written for it: Directus, Sequelize, TypeORM, Knex and their like.
//
// A database is one stream of libSQL's protocol, in which statements run in the order of the calls. Rows are ordinary
// objects with numbers and Buffers, and errors have the code, the number and the text that sqlite3 gives them. If the
// stream ends, the next call opens another one; in a transaction, calls raise SQLITE_ABORT until ROLLBACK.
const { EventEmitter } = require("node:events");
const hrana = require("@libsql/hrana-client");

const RESULTS = [
  "OK", "ERROR", "INTERNAL", "PERM", "ABORT", "BUSY", "LOCKED", "NOMEM", "READONLY", "INTERRUPT", "IOERR", "CORRUPT",
  "NOTFOUND", "FULL", "CANTOPEN", "PROTOCOL", "EMPTY", "SCHEMA", "TOOBIG", "CONSTRAINT", "MISMATCH", "MISUSE", "NOLFS",
  "AUTH", "FORMAT", "RANGE", "NOTADB",
];

function errorOf(given) {
  const name = /^SQLITE_([A-Z]+)/.exec(given.code ?? "")?.[1];
  const code = name ? `SQLITE_${name}` : given.code ?? "SQLITE_IOERR";
  const error = new Error(`${code}: ${given.message}`, { cause: given });
  return Object.assign(error, { code, errno: RESULTS.indexOf(name) });
}

function bound(value) {
  return value === undefined ? null : Number.isSafeInteger(value) ? BigInt(value) : value;
}

function read(value) {
  return typeof value === "bigint" ? Number(value) : value instanceof ArrayBuffer ? Buffer.from(value) : value;
}

function statementOf(sql, values) {
  const made = new hrana.Stmt(sql), first = values[0];
  const isNamed = Object.prototype.toString.call(first) === "[object Object]";
  if (first === undefined && values.length < 2) return made;
  if (!isNamed) return made.bindIndexes((Array.isArray(first) ? first : values).map(bound));
  for (const [name, value] of Object.entries(first)) {
    if (/^\d+$/.test(name)) made.bindIndex(+name, bound(value));
    else made.bindName(name, bound(value));
  }
  return made;
}

function lastFunction(values) {
  return typeof values.at(-1) === "function" ? values.pop() : undefined;
}

class Statement extends EventEmitter {
  constructor(database, sql, values) {
    super();
    Object.assign(this, { database, sql, values, lastID: 0, changes: 0 });
  }

  rows(values, use, fail) {
    if (values.length) this.values = values;
    const answered = ({ columnNames, rows, affectedRowCount, lastInsertRowid }) => {
      this.database.lastID = Number(lastInsertRowid ?? this.database.lastID);
      Object.assign(this, { lastID: this.database.lastID, changes: affectedRowCount });
      use(rows.map((row) => Object.fromEntries(columnNames.map((name, at) => [name, read(row[at])]))));
    };
    this.database.call((stream) => stream.query(statementOf(this.sql, this.values)), this.sql, answered, (error) =>
      fail ? fail.call(this, error) : this.emit("error", error));
    return this;
  }

  answer(values, of) {
    const done = lastFunction(values);
    return this.rows(values, (rows) => done?.call(this, null, ...of(rows)), done);
  }

  run(...values) { return this.answer(values, () => []); }
  get(...values) { return this.answer(values, (rows) => [rows[0]]); }
  all(...values) { return this.answer(values, (rows) => [rows]); }

  map(...values) {
    return this.answer(values, (rows) => [Object.fromEntries(rows.map((row) => {
      const [key, ...others] = Object.values(row);
      return [key, others.length > 1 ? row : others[0]];
    }))]);
  }

  each(...values) {
    const last = lastFunction(values), other = lastFunction(values);
    const each = other ?? last, done = other && last;
    return this.rows(values, (rows) => {
      for (const row of rows) each?.call(this, null, row);
      done?.call(this, null, rows.length);
    }, done ?? each);
  }

  bind(...values) {
    const done = lastFunction(values);
    this.values = values;
    return this.reset(done);
  }

  reset(done) { return this.database.wait(done && (() => done.call(this, null))), this; }
  finalize(done) { return this.database.wait(done); }
}

class Database extends EventEmitter {
  constructor(url, ...options) {
    super();
    const done = lastFunction(options);
    Object.assign(this, { filename: url, open: false, lastID: 0, inTransaction: false, isLost: false });
    const { hranaHttpUrl, authToken } = hrana.parseLibsqlUrl(url);
    this.client = hrana.openHttp(hranaHttpUrl, authToken);
    this.client.intMode = "bigint";
    const opened = () => {
      this.open = true;
      done?.call(this, null);
      this.emit("open");
    };
    this.call((stream) => stream.queryValue("SELECT 1"), "", opened, (error) =>
      done ? done.call(this, error) : this.emit("error", error));
  }

  call(ask, sql, use, fail) { // `use` and `fail` run outside of the promise, so that their errors reach the program
    const ends = /^\s*(COMMIT|END|ROLLBACK(?!\s+(TRANSACTION\s+)?TO))\b/i.exec(sql)?.[1].toUpperCase();
    const succeed = (answer) => {
      if (ends || /^\s*BEGIN\b/i.test(sql)) this.inTransaction = !ends;
      queueMicrotask(() => use(answer));
    };
    const lose = (error) => queueMicrotask(() => fail(errorOf(error)));
    if (this.stream?.closed) {
      this.isLost = this.inTransaction;
      this.stream = undefined;
    }
    if (this.isLost) {
      if (ends) this.isLost = this.inTransaction = false;
      const error = { code: "SQLITE_ABORT", message: "the transaction was lost with its connection: ROLLBACK" };
      if (ends === "ROLLBACK") succeed({ columnNames: [], rows: [], affectedRowCount: 0 });
      else lose(error);
      return;
    }
    try {
      this.stream ??= this.client.openStream();
      ask(this.stream).then(succeed, lose);
    } catch (error) {
      lose(error);
    }
  }

  run(sql, ...values) { return new Statement(this, sql, []).run(...values), this; }
  get(sql, ...values) { return new Statement(this, sql, []).get(...values), this; }
  all(sql, ...values) { return new Statement(this, sql, []).all(...values), this; }
  map(sql, ...values) { return new Statement(this, sql, []).map(...values), this; }
  each(sql, ...values) { return new Statement(this, sql, []).each(...values), this; }

  prepare(sql, ...values) {
    const done = lastFunction(values), made = new Statement(this, sql, values);
    const answer = (error) => done.call(made, error instanceof Error ? error : null);
    if (done) this.call((stream) => stream.describe(sql), "", answer, answer);
    return made;
  }

  exec(sql, done) {
    const fail = (error) => (done ? done.call(this, error) : this.emit("error", error));
    this.call((stream) => stream.sequence(sql), sql, () => done?.call(this, null), fail);
    return this;
  }

  wait(done) {
    const answer = () => done.call(this, null);
    if (done) this.call((stream) => stream.queryValue("SELECT 1"), "", answer, answer);
    return this;
  }

  close(done) {
    this.wait(() => {
      this.client.close();
      this.open = false;
      done?.call(this, null);
      this.emit("close");
    });
  }

  serialize(work) { work?.(); }
  parallelize(work) { work?.(); }
  configure() { return this; }
  interrupt() {}
  loadExtension(_, done) { done?.call(this, new Error("SQLITE_ERROR: register functions in a plugin of the nodes")); }
}

const opened = new Map();
const cached = { Database: function (url, ...options) {
  if (!opened.has(url)) opened.set(url, new Database(url, ...options));
  else lastFunction(options)?.call(opened.get(url), null);
  return opened.get(url);
} };
const OPENS = { OPEN_READONLY: 1, OPEN_READWRITE: 2, OPEN_CREATE: 4, OPEN_URI: 64, OPEN_FULLMUTEX: 0x10000,
  OPEN_SHAREDCACHE: 0x20000, OPEN_PRIVATECACHE: 0x40000 };
const numbers = Object.fromEntries(RESULTS.map((name, number) => [name, number]));
module.exports = { Database, Statement, cached, ...OPENS, ...numbers, verbose: () => module.exports };
