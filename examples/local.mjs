// Reads a node's file with better-sqlite3 after a write by HTTP: node local.mjs /var/lib/app/A.sqlite http://127.0.0.1:4001
import { readFileSync } from "node:fs"
import { setTimeout as pause } from "node:timers/promises"
import { crc32 } from "node:zlib"
import Database from "better-sqlite3"

// Return the generation and the last durable batch of a node that serves.
function page(path) {
  for (;;) {
    const data = readFileSync(path + "-node").subarray(0, 108)
    const isTorn = data.readBigUInt64LE(8) % 2n === 1n || crc32(data.subarray(20)) !== data.readUInt32LE(16)
    if (isTorn || data.toString("latin1", 0, 8) !== "bdrknod1") continue
    const upFor = Number(readFileSync("/proc/uptime", "utf8").split(" ")[0])
    const silent = upFor - Number(data.readBigUInt64LE(88)) / 1e9
    if (![1, 2].includes(data.readUInt32LE(20)) || silent > 4)
      throw new Error("the node does not serve its file now; ask another node")
    return { generation: data.readUInt32LE(44), durable: Number(data.readBigUInt64LE(80)) }
  }
}

// Run a function in a read transaction that sees a commit: the leader and the tick that its answer has named.
async function reading(db, path, [leader, tick], before, read) {
  for (;;) {
    db.exec("BEGIN")
    try {
      const moment = JSON.parse(db.prepare("SELECT value FROM bedrockish_meta WHERE key = 'moment'").pluck().get())
      const now = page(path)
      if (now.generation !== before.generation) throw new Error("the node has exchanged its file; open it again")
      if (moment.batch <= now.durable && (moment.vector[leader] ?? 0) >= tick) return read()
    } finally {
      db.exec("COMMIT")
    }
    await pause(1)
  }
}

const [path, url] = process.argv.slice(2)
const before = page(path)
const db = new Database(path, { readonly: true, fileMustExist: true })
const body = JSON.stringify([["INSERT INTO item VALUES (?, ?)", Number(process.argv[4]), "from JavaScript"]])
const headers = { "Content-Type": "application/json" }
const written = await (await fetch(`${url}/db/transaction`, { method: "POST", headers, body })).json()
if (!written.place) throw new Error(JSON.stringify(written))
const rows = await reading(db, path, written.place, before, () => db.prepare("SELECT * FROM item ORDER BY id").all())
console.log(JSON.stringify(rows))
db.close()
