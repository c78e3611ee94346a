"""The tables that the laws query, derived from ``held`` and ``facts`` in SQL that both DuckDB and Spark understand.

The few expressions that differ are in ``Dialect``, such as ``eid``, the id of a distinct entry.
"""

from typing import NamedTuple


class Dialect(NamedTuple):
    """The SQL expressions in which the two engines differ."""

    eid: str  # the id of a distinct entry
    no_eid: str  # NULL with the type of ``eid``
    number: str  # the number of a transaction, in the order of clock and origin
    each: str  # the function that turns an array into rows
    series: str  # the function that returns an array of the integers from one to another, both included
    names: str  # the distinct names in a group, sorted, separated by commas


DUCKDB = Dialect(
    "rowid",
    "CAST(NULL AS BIGINT)",
    "row_number() OVER (ORDER BY clock, origin)",
    "unnest",
    "generate_series",
    "array_to_string(list_sort(list(DISTINCT {0})), ', ')",
)
SPARK = Dialect(
    "concat(substring(digest, 1, 16), unhex(lpad(hex(lengths), 16, '0')))",
    "CAST(NULL AS BINARY)",
    "concat(lpad(CAST(clock AS STRING), 19, '0'), ' ', origin)",
    "explode",
    "sequence",
    "array_join(array_sort(collect_set({0})), ', ')",
)


class View(NamedTuple):
    """A table that is derived from others."""

    name: str
    sql: str  # the query that makes the table
    is_table: bool = False  # whether to store its rows, because several laws query them


HIGHEST = (1 << 63) - 1
UP_TO = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
BEFORE = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"


def _each(name: str, column: str, fields: str, dialect: Dialect) -> View:
    chosen = ", ".join(f"u.{field} AS {field}" for field in fields.split())
    return View(
        name, f"SELECT eid, {chosen} FROM (SELECT eid, {dialect.each}({column}) AS u FROM fact) AS x", is_table=True
    )


def views(dialect: Dialect) -> list[View]:
    """Return the derived tables; each uses only tables before it.

    The given tables are ``held`` and ``facts`` (``bedrockish_journal.audit.facts``), and those of
    ``bedrockish_journal.audit.reading.TABLES``.
    """
    return [
        View("fact", f"SELECT {dialect.eid} AS eid, * FROM facts"),
        View(
            "entry",
            "SELECT eid, digest, lengths, malformed, shares, unwritten, leader, tick, origin, clock, txid, command, "
            "kind, adopted_from, config, safe, ran_on, activates, content, makes, wrong_members FROM fact",
            is_table=True,
        ),
        View("good", "SELECT * FROM entry WHERE malformed IS NULL"),
        View(
            "stored",
            "SELECT h.*, e.eid, e.malformed FROM held h JOIN entry e ON e.digest = h.digest AND e.lengths = h.lengths",
            is_table=True,
        ),
        _each("dep", "deps", "leader tick", dialect),
        _each("approval", "approvals", "leader tick", dialect),
        _each("point", "points", "obj writes", dialect),
        _each("span", "ranges", "low high writes", dialect),
        _each("made", "members", "member voter", dialect),
        _each("left_at", "retired", "leader tick", dialect),
        _each("gave_up", "gave_up", "clock origin", dialect),
        _each("need_of", "needs", "user role", dialect),
        View(
            "joined",
            f"SELECT eid, u AS command FROM (SELECT eid, {dialect.each}(commands) AS u FROM fact) AS x",
            is_table=True,
        ),
        View("place", "SELECT DISTINCT leader, tick, eid FROM stored WHERE malformed IS NULL", is_table=True),
        View("leaders", "SELECT DISTINCT leader FROM held"),
        *_memberships(),
        View(
            "prefix",
            f"SELECT node, leader, tick, max(seq) OVER (PARTITION BY node, leader ORDER BY tick {UP_TO}) AS seq, "
            f"max(clock) OVER (PARTITION BY node, leader ORDER BY tick {UP_TO}) AS clock FROM held",
        ),
        View(  # the predecessors of an entry in its file; removed predecessors are not judged
            "need",
            "SELECT s.node, s.leader, s.tick, s.txid, s.clock, s.seq, d.leader AS of_leader, d.tick AS of_tick, "
            "p.seq AS of_seq, greatest(p.clock, coalesce(m.clock, 0)) AS of_clock "
            "FROM stored s JOIN dep d ON d.eid = s.eid "
            "LEFT JOIN prefix p ON p.node = s.node AND p.leader = d.leader AND p.tick = d.tick "
            "LEFT JOIN mark m ON m.node = s.node AND m.leader = d.leader "
            "WHERE (m.tick IS NULL OR d.tick > m.tick) AND (p.seq IS NULL OR p.seq >= s.seq OR "
            "greatest(p.clock, coalesce(m.clock, 0)) >= s.clock)",
            is_table=True,
        ),
        _grid("saw", "dep", 0),
        _grid("gave", "approval", -1),
        *_snapshots(dialect),
        *_transactions(dialect),
    ]


def _memberships() -> list[View]:
    """Return the tables of the members of each version, and of the timelines that vectors omit."""
    return [
        View(
            "member",
            "SELECT node, leader, tick, version, member, voter FROM before UNION ALL "
            "SELECT s.node, s.leader, s.tick, e.makes, m.member, m.voter FROM stored s "
            "JOIN entry e ON e.eid = s.eid JOIN made m ON m.eid = s.eid WHERE NOT s.again",
            is_table=True,
        ),
        View("voter", "SELECT DISTINCT version, member FROM member WHERE voter", is_table=True),
        View(
            "retired",
            "SELECT leader, min(since) AS since FROM (SELECT leader, since FROM left_before UNION ALL "
            "SELECT leader, tick AS since FROM left_at) AS x GROUP BY leader",
            is_table=True,
        ),
        View(  # ``dep``, plus all of each timeline that was retired when the entry began
            "past",
            "SELECT eid, leader, tick FROM dep UNION ALL "
            f"SELECT e.eid, r.leader, {HIGHEST} AS tick FROM good e JOIN retired r ON r.since <= e.config "
            "WHERE NOT EXISTS (SELECT 1 FROM dep d WHERE d.eid = e.eid AND d.leader = r.leader)",
        ),
    ]


def _grid(name: str, table: str, absent: int) -> View:
    """Return the table of each node's highest tick in the vectors, or approvals, of all entries up to a place."""
    return View(
        name,
        f"SELECT leader, tick, of_node, max(said) OVER (PARTITION BY leader, of_node ORDER BY tick {UP_TO}) AS upto "
        "FROM "
        f"(SELECT p.leader, p.tick, l.leader AS of_node, min(coalesce(d.tick, {absent})) AS said FROM place p "
        f"CROSS JOIN leaders l LEFT JOIN {table} d ON d.eid = p.eid AND d.leader = l.leader "
        "GROUP BY p.leader, p.tick, l.leader) AS x",
        is_table=True,
    )


def _snapshots(dialect: Dialect) -> list[View]:
    """Return the tables of the ticks that each entry had to have seen, and of the schema version for its clock."""
    return [
        # Transactions with several labels are left out, since an entry may have seen either label.
        View(
            "single",
            "SELECT min(leader) AS leader, min(tick) AS tick, clock FROM (SELECT DISTINCT p.leader, p.tick, e.clock, "
            "e.origin FROM place p JOIN good e ON e.eid = p.eid) AS x GROUP BY clock, origin HAVING count(*) = 1",
        ),
        View(  # for each entry and timeline: the timeline's last tick with a clock at or below the entry's safe time
            "due",
            "SELECT eid, leader, upto FROM (SELECT eid, leader, "
            f"max(tick) OVER (PARTITION BY leader ORDER BY clock, asks {UP_TO}) AS upto "
            f"FROM (SELECT {dialect.no_eid} AS eid, leader, tick, clock, 0 AS asks FROM single UNION ALL "
            "SELECT e.eid, l.leader, CAST(NULL AS BIGINT) AS tick, e.safe AS clock, 1 AS asks FROM good e "
            "CROSS JOIN leaders l) AS x) AS y WHERE eid IS NOT NULL AND upto IS NOT NULL",
        ),
        View(
            "schemas", "SELECT DISTINCT clock, origin, activates, ran_on FROM good WHERE kind = 'schema'", is_table=True
        ),
        # A change without an activation clock is in force once its entry is applied: at each node at another moment.
        View(
            "first_schema", "SELECT min(ran_on) AS version, min(activates) AS activates, count(*) AS many FROM schemas"
        ),
        View(
            "version_due",
            "SELECT eid, ran_on, version + made AS version FROM (SELECT eid, ran_on, "
            f"sum(makes) OVER (ORDER BY clock, asks {UP_TO}) AS made "
            f"FROM (SELECT {dialect.no_eid} AS eid, CAST(NULL AS BIGINT) AS ran_on, activates AS clock, 1 AS makes, "
            "0 AS asks FROM schemas UNION ALL SELECT eid, ran_on, clock, 0 AS makes, 1 AS asks FROM good) AS x) AS y "
            "CROSS JOIN first_schema WHERE eid IS NOT NULL AND many > 0 AND activates > 0",
        ),
        View(
            "usual_version",
            "SELECT ran_on AS version FROM (SELECT ran_on, count(*) AS often FROM good GROUP BY ran_on) AS x "
            "CROSS JOIN first_schema WHERE many = 0 ORDER BY often DESC, ran_on LIMIT 1",
        ),
    ]


def _transactions(dialect: Dialect) -> list[View]:
    """Return the tables of the transactions of all files together, which the law ``conflict`` queries."""
    return [
        # Transactions up to this clock are not compared: a label of them may have been removed from every journal, and
        # then it is unknown which vectors cover them.
        View(
            "horizon",
            "SELECT coalesce(max(least), 0) AS clock FROM (SELECT h.leader, min(coalesce(m.clock, 0)) AS least FROM "
            "(SELECT DISTINCT node, leader FROM held) AS h LEFT JOIN mark m ON m.node = h.node AND m.leader = h.leader "
            "GROUP BY h.leader) AS x",
        ),
        View(
            "txn",
            f"SELECT {dialect.number} AS tid, clock, origin, txid, eid, kind FROM (SELECT clock, origin, "
            "min(txid) AS txid, min(eid) AS eid, min(kind) AS kind FROM good WHERE clock > "
            "(SELECT clock FROM horizon) GROUP BY clock, origin) AS x",
            is_table=True,
        ),
        View(
            "label",
            "SELECT DISTINCT t.tid, p.leader, p.tick FROM place p JOIN good e ON e.eid = p.eid "
            "JOIN txn t ON t.clock = e.clock AND t.origin = e.origin",
            is_table=True,
        ),
        View("tpast", "SELECT t.tid, p.leader, p.tick FROM txn t JOIN past p ON p.eid = t.eid", is_table=True),
        View("touch", "SELECT t.tid, p.obj, p.writes FROM txn t JOIN point p ON p.eid = t.eid", is_table=True),
        View("reach", "SELECT t.tid, s.low, s.high, s.writes FROM txn t JOIN span s ON s.eid = t.eid", is_table=True),
        View("hot", "SELECT DISTINCT obj FROM touch WHERE writes"),
        # For each transaction that touches a key: the last write of the key before it, and the next write after it.
        View(
            "turn",
            "SELECT x.tid, x.obj, x.writes, "
            f"max(CASE WHEN x.writes THEN x.tid END) OVER (PARTITION BY x.obj ORDER BY x.tid {BEFORE}) AS wrote, "
            f"min(CASE WHEN x.writes THEN x.tid END) OVER (PARTITION BY x.obj ORDER BY x.tid DESC {BEFORE}) AS "
            "writes_next "
            "FROM touch x JOIN hot ON hot.obj = x.obj",
        ),
        View(
            "met_at_point",
            "SELECT tid AS later, wrote AS earlier, obj FROM turn WHERE wrote IS NOT NULL UNION ALL "
            "SELECT writes_next, tid, obj FROM turn WHERE NOT writes AND writes_next IS NOT NULL",
        ),
        *_ranges(dialect),
        View(
            "met",
            "SELECT later, earlier, obj FROM met_at_point UNION ALL SELECT later, earlier, obj FROM met_in_range "
            "UNION ALL SELECT later, earlier, obj FROM met_in_members",
            is_table=True,  # two queries read it; each would compute all tables from which it is derived
        ),
        View(
            "seen",
            "SELECT DISTINCT m.later, m.earlier FROM (SELECT DISTINCT later, earlier FROM met) AS m "
            "JOIN label l ON l.tid = m.earlier JOIN tpast p ON p.tid = m.later AND p.leader = l.leader "
            "AND p.tick >= l.tick",
        ),
    ]


def _ranges(dialect: Dialect) -> list[View]:
    """Return the tables of ranges that overlap, which are compared only between concurrent transactions.

    A transaction is concurrent with the ticks of each timeline that it had not seen, and these are few.
    """
    return [
        View("wide", "SELECT DISTINCT tid FROM reach"),
        View(
            "line",
            "SELECT l.leader, l.tick, l.tid, w.tid IS NOT NULL AS wide FROM label l LEFT JOIN wide w ON w.tid = l.tid",
            is_table=True,
        ),
        View(
            "asks",
            "SELECT n.leader, t.tid, w.tid IS NOT NULL AS wide, coalesce(p.tick, 0) AS had, CAST(NULL AS BIGINT) AS "
            "tick "
            "FROM txn t CROSS JOIN leaders n LEFT JOIN tpast p ON p.tid = t.tid AND p.leader = n.leader "
            "LEFT JOIN wide w ON w.tid = t.tid UNION ALL "
            "SELECT leader, tid, wide, CAST(NULL AS BIGINT) AS had, tick FROM line",
        ),
        View(
            "unseen",
            "SELECT leader, tid, wide, had, "
            f"max(tick) OVER (PARTITION BY leader ORDER BY tid {BEFORE}) AS upto, "
            f"max(CASE WHEN wide THEN tick END) OVER (PARTITION BY leader ORDER BY tid {BEFORE}) AS wide_upto FROM "
            "asks",
        ),
        View(
            "apart",
            f"SELECT leader, tid, wide, {dialect.each}({dialect.series}(had + 1, upto)) AS tick FROM unseen "
            "WHERE had IS NOT NULL AND upto > had AND (wide OR wide_upto > had)",
        ),
        View(
            "side_by_side",
            "SELECT DISTINCT a.tid AS later, l.tid AS earlier FROM apart a "
            "JOIN line l ON l.leader = a.leader AND l.tick = a.tick WHERE (a.wide OR l.wide) AND l.tid < a.tid",
            is_table=True,
        ),
        # A single key is the range from the key to its successor.
        View(
            "reached",
            "SELECT tid, low, high, writes FROM reach UNION ALL "
            "SELECT tid, obj AS low, concat(obj, unhex('00')) AS high, writes FROM touch",
        ),
        View(
            "sides",
            "SELECT later, earlier, later AS own, earlier AS other FROM side_by_side UNION ALL "
            "SELECT later, earlier, earlier AS own, later AS other FROM side_by_side",
        ),
        View(
            "met_in_range",
            "SELECT s.later, s.earlier, greatest(a.low, b.low) AS obj FROM sides s JOIN reach a ON a.tid = s.own "
            "JOIN reached b ON b.tid = s.other WHERE a.low < b.high AND b.low < a.high AND (a.writes OR b.writes)",
        ),
        View(
            "met_in_members",
            "SELECT greatest(c.tid, t.tid) AS later, least(c.tid, t.tid) AS earlier, unhex('') AS obj FROM txn c "
            "JOIN txn t ON t.tid <> c.tid WHERE c.kind = 'members'",
        ),
    ]
