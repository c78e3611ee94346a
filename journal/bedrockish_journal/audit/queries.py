"""Each law as SQL queries that find its violations: one row for each finding, with the columns in ``COLUMNS``.

The SQL is the same for every engine; ``bedrockish_journal.audit.views`` has the tables and the engines' differences.
"""

from bedrockish_journal.model.laws import FAULT, INFORMATION

COLUMNS = ("level", "node", "leader", "tick", "txid", "obj", "text")
_GENESIS = "00" * 32


def _finding(
    text: str,
    source: str,
    *,
    node: str = "s.node",
    leader: str = "s.leader",
    tick: str = "s.tick",
    txid: str = "s.txid",
    obj: str = "CAST(NULL AS BINARY)",
    level: str = f"'{FAULT}'",
) -> str:
    """Return the query for one kind of finding, with the place of the entry in the row ``s`` unless columns are given.

    Args:
        text: the fault: SQL expressions of the parts of a sentence, separated by commas.
        source: the query from FROM on.
        node, leader, tick, txid, obj, level: other SQL expressions for these columns.
    """
    return (
        f"SELECT {level} AS level, CAST({node} AS STRING) AS node, CAST({leader} AS STRING) AS leader, "
        f"CAST({tick} AS BIGINT) AS tick, CAST({txid} AS STRING) AS txid, {obj} AS obj, concat({text}) AS text {source}"
    )


def _short(column: str) -> str:
    return f"lower(substr(hex({column}), 1, 12)), '…'"


_PLACE = "s.leader, s.tick"
_NONE = "CAST(NULL AS STRING)"


def _claims(law: str) -> str:
    """Return the query for the false claims of files (``storage.file_claims``)."""
    return _finding("s.text", f"FROM claim s WHERE s.law = '{law}'", txid=_NONE)


_BYTES = [
    _finding(
        f"{_PLACE}, ' cannot be read: ', e.malformed",
        "FROM stored s JOIN entry e ON e.eid = s.eid WHERE e.malformed IS NOT NULL",
    ),
    _finding(f"{_PLACE}, ' ', e.shares", "FROM stored s JOIN entry e ON e.eid = s.eid WHERE e.shares IS NOT NULL"),
]
_SAID = ("leader", "tick", "clock", "origin", "command", "kind")
_COLUMNS = [
    _claims("columns"),
    _finding("s.text", "FROM odd s", txid=_NONE),
    *(
        _finding(
            f"{_PLACE}, ' has the {name} ', s.{name}, ' in its column and ', e.{name}, ' in its bytes'",
            f"FROM stored s JOIN good e ON e.eid = s.eid WHERE s.{name} <> e.{name}",
        )
        for name in _SAID
    ),
    _finding(
        f"{_PLACE}, ' has the command ', j.command, ', and bedrockish_joined does not say so'",
        "FROM stored s JOIN joined j ON j.eid = s.eid JOIN good e ON e.eid = s.eid JOIN lists o ON o.node = s.node "
        "LEFT JOIN listed l ON l.node = s.node AND l.seq = s.seq AND l.command = j.command "
        "WHERE NOT s.again AND j.command <> e.command AND l.seq IS NULL",
    ),
    _finding(
        "'bedrockish_joined has the command ', l.command, ' in row ', l.seq, ' of the journal, which does not say so'",
        "FROM listed l LEFT JOIN (SELECT s.node, s.seq, j.command FROM stored s JOIN joined j ON j.eid = s.eid "
        "JOIN good e ON e.eid = s.eid WHERE NOT s.again AND j.command <> e.command) AS x "
        "ON x.node = l.node AND x.seq = l.seq AND x.command = l.command "
        "LEFT JOIN (SELECT node, seq FROM stored WHERE malformed IS NOT NULL) AS bad "
        "ON bad.node = l.node AND bad.seq = l.seq WHERE x.command IS NULL AND bad.seq IS NULL",
        node="l.node",
        leader=_NONE,
        tick="NULL",
        txid=_NONE,
    ),
]
_LABEL = [
    _finding(
        f"{_PLACE}, ' commits a transaction of ', e.origin, CASE WHEN e.adopted_from IS NULL "
        "THEN ' without saying that it adopted it' ELSE concat(', and says that it adopted it from ', "
        "e.adopted_from) END",
        "FROM stored s JOIN good e ON e.eid = s.eid WHERE e.origin <> coalesce(e.adopted_from, e.leader)",
    )
]
_RUN = (
    "(SELECT h.node, h.leader, h.tick, h.txid, h.prev, m.hash AS mark_hash, m.tick AS mark_tick, "
    "coalesce(lag(h.tick) OVER (PARTITION BY h.node, h.leader ORDER BY h.tick, h.seq), m.tick, 0) AS last, "
    "lag(h.hash) OVER (PARTITION BY h.node, h.leader ORDER BY h.tick, h.seq) AS last_hash "
    "FROM held h LEFT JOIN mark m ON m.node = h.node AND m.leader = h.leader) AS s"
)
_DENSITY = [
    _finding(
        "CASE WHEN s.tick <= s.last THEN concat(s.leader, s.tick, ' is there twice') "
        "WHEN s.tick = s.last + 2 THEN concat(s.leader, s.last + 1, ' is missing') "
        "ELSE concat(s.leader, s.last + 1, ' to ', s.leader, s.tick - 1, ' are missing') END",
        f"FROM {_RUN} WHERE s.tick <> s.last + 1",
        tick="CASE WHEN s.tick > s.last THEN s.last + 1 ELSE s.tick END",
        txid="CASE WHEN s.tick <= s.last THEN s.txid END",
    ),
    _finding(
        f"s.leader, ' is removed up to ', {_PLACE}, ', its last entry, which no node removes'",
        "FROM mark s LEFT JOIN (SELECT DISTINCT node, leader FROM held) AS h ON h.node = s.node "
        "AND h.leader = s.leader WHERE h.node IS NULL",
        txid=_NONE,
    ),
]
_HASH = [
    _finding(
        f"{_PLACE}, ' does not match its hash: its bytes have ', {_short('s.digest')}, ', not ', {_short('s.hash')}",
        "FROM held s WHERE s.digest <> s.hash",
    )
]
_LINK = [
    _finding(
        f"{_PLACE}, ' continues ', {_short('s.prev')}, ', but the entry before it is ', {_short('s.due')}",
        "FROM (SELECT node, leader, tick, txid, prev, last, mark_tick, last_hash, CASE "
        f"WHEN tick = 1 THEN unhex('{_GENESIS}') WHEN last_hash IS NOT NULL AND last = tick - 1 THEN last_hash "
        f"WHEN mark_tick = tick - 1 THEN mark_hash END AS due FROM {_RUN}) AS s WHERE s.prev <> s.due",
    )
]
_CAUSALITY = [
    _finding(
        f"{_PLACE}, CASE WHEN s.of_seq IS NULL THEN concat(' had seen ', s.of_leader, s.of_tick, "
        "', which is not in this journal') ELSE concat(' was applied before ', s.of_leader, s.of_tick, "
        "', which is in its base') END",
        "FROM need s WHERE s.of_seq IS NULL OR s.of_seq >= s.seq",
    )
]
_CLOCK = [
    _finding(
        f"{_PLACE}, ' has a clock that is not later than all clocks up to ', s.of_leader, s.of_tick",
        "FROM need s WHERE s.of_seq < s.seq AND s.of_clock >= s.clock",
    )
]
_CLOSURE = [
    _finding(
        f"{_PLACE}, ' had seen ', d.leader, d.tick, ', but not ', w.of_node, w.upto, ', which ', d.leader, d.tick, "
        "' had seen'",
        "FROM place x JOIN dep d ON d.eid = x.eid JOIN saw w ON w.leader = d.leader AND w.tick = d.tick "
        "LEFT JOIN past p ON p.eid = x.eid AND p.leader = w.of_node JOIN stored s ON s.eid = x.eid "
        "WHERE w.upto > coalesce(p.tick, 0)",
    )
]
_NEED = (
    "CASE WHEN e.adopted_from IS NOT NULL THEN floor(n.voters / 2) + 1 ELSE greatest(floor(n.voters / 2) + 1, "
    "floor((n.voters + floor((n.voters - 1) / 2)) / 2)) END"
)
_QUORUM = [
    _finding(
        f"{_PLACE}, ' counts by membership version ', e.config, ', which no given journal holds'",
        "FROM stored s JOIN good e ON e.eid = s.eid LEFT JOIN voter v ON v.version = e.config "
        "WHERE v.version IS NULL AND EXISTS (SELECT 1 FROM voter)",
    ),
    _finding(
        f"{_PLACE}, ' shows approvals of ', q.votes, ' of ', q.voters, ' voters and needs ', q.wanted",
        "FROM stored s JOIN (SELECT e.eid, count(v.member) AS votes, max(n.voters) AS voters, "
        f"CAST(max({_NEED}) AS BIGINT) AS wanted FROM good e "
        "JOIN (SELECT version, count(*) AS voters FROM voter GROUP BY version) AS n ON n.version = e.config "
        "LEFT JOIN approval a ON a.eid = e.eid LEFT JOIN voter v ON v.version = e.config AND v.member = a.leader "
        "GROUP BY e.eid) AS q ON q.eid = s.eid WHERE q.votes < q.wanted",
    ),
    _finding(
        f"{_PLACE}, ' counts ', a.leader, ', which is not a voter of its membership'",
        "FROM stored s JOIN good e ON e.eid = s.eid JOIN approval a ON a.eid = e.eid "
        "LEFT JOIN voter v ON v.version = e.config AND v.member = a.leader "
        "WHERE v.member IS NULL AND e.config IN (SELECT version FROM voter)",
    ),
    _finding(
        f"{_PLACE}, ' lacks the approval of its own leader at tick ', s.tick",
        "FROM stored s JOIN good e ON e.eid = s.eid LEFT JOIN approval a ON a.eid = e.eid AND a.leader = e.leader "
        "AND a.tick = e.tick WHERE e.adopted_from IS NULL AND a.leader IS NULL",
    ),
    _finding(
        f"{_PLACE}, ' counts by membership version ', e.config, ', but version ', x.due, ' was in force at its base'",
        "FROM stored s JOIN good e ON e.eid = s.eid JOIN (SELECT g.eid, greatest(max(f.founded), "
        "coalesce(max(CASE WHEN d.tick >= c.tick THEN c.version END), 0)) AS due FROM good g "
        "CROSS JOIN (SELECT min(version) AS founded FROM member) AS f LEFT JOIN dep d ON d.eid = g.eid "
        "LEFT JOIN (SELECT DISTINCT leader, tick, version FROM member WHERE tick IS NOT NULL) AS c "
        "ON c.leader = d.leader GROUP BY g.eid) AS x ON x.eid = e.eid WHERE e.config <> x.due",
    ),
]
_APPROVAL = [
    _finding(
        f"{_PLACE}, ' was approved by ', a.leader, ' at ', a.leader, a.tick, ', but it had seen ', d.leader, d.tick, "
        "' already'",
        "FROM stored s JOIN good e ON e.eid = s.eid JOIN approval a ON a.eid = e.eid "
        "JOIN dep d ON d.eid = e.eid AND d.leader = a.leader WHERE a.tick < d.tick AND e.adopted_from IS NULL",
    ),
    _finding(
        f"{_PLACE}, ' had seen ', d.leader, d.tick, ', but ', x.leader, ' approved an entry up to that one only at ', "
        "x.leader, g.upto",
        "FROM place x JOIN dep d ON d.eid = x.eid AND d.leader <> x.leader "
        "JOIN gave g ON g.leader = d.leader AND g.tick = d.tick AND g.of_node = x.leader "
        "JOIN stored s ON s.eid = x.eid WHERE g.upto >= x.tick",
    ),
    _finding(
        f"a.leader, ' approved ', {_PLACE}, ' at its tick ', a.tick, ', but its own file ends at ', o.tick",
        "FROM stored s JOIN approval a ON a.eid = s.eid JOIN own_end o ON o.node = a.leader WHERE a.tick > o.tick",
        level=f"'{INFORMATION}'",
    ),
]
_MEMBERS = [
    _claims("members"),
    _finding(
        "g.node, ' lacks the founding membership of the cluster: its quorums cannot be judged'",
        "FROM given g LEFT JOIN (SELECT DISTINCT node FROM before WHERE tick IS NULL) AS b ON b.node = g.node "
        "WHERE b.node IS NULL",
        node="g.node",
        leader=_NONE,
        tick="NULL",
        txid=_NONE,
    ),
    _finding(
        "'the voters of membership version ', v.version, ' are not the same in all files: ', v.member, "
        "' does not vote in the file of ', n.node",
        "FROM voter v JOIN (SELECT DISTINCT node, version FROM member) AS n ON n.version = v.version "
        "LEFT JOIN member m ON m.node = n.node AND m.version = v.version AND m.member = v.member AND m.voter "
        "WHERE m.member IS NULL",
        node="n.node",
        leader=_NONE,
        tick="NULL",
        txid=_NONE,
    ),
    _finding(
        f"{_PLACE}, ' has a membership that cannot be read: ', e.wrong_members",
        "FROM stored s JOIN good e ON e.eid = s.eid WHERE e.wrong_members IS NOT NULL",
    ),
    _finding(
        f"{_PLACE}, ' makes membership ', e.makes, ' out of membership ', e.config",
        "FROM stored s JOIN good e ON e.eid = s.eid WHERE NOT s.again AND e.makes <> e.config + 1",
    ),
    _finding(
        f"{_PLACE}, ' retires the timeline ', r.leader, ', and had not seen all of it: ', o.leader, min(o.tick)",
        "FROM stored s JOIN good e ON e.eid = s.eid JOIN left_at r ON r.eid = s.eid AND r.tick = e.makes "
        "JOIN held o ON o.node = s.node AND o.leader = r.leader AND (o.seq < s.seq OR NOT o.again) "
        "LEFT JOIN dep d ON d.eid = s.eid AND d.leader = r.leader WHERE o.tick > coalesce(d.tick, 0) "
        "GROUP BY s.node, s.leader, s.tick, s.txid, r.leader, o.leader",
    ),
]
_TXID = [
    _finding(
        "min(s.txid), ' was applied ', count(*), ' times'",
        "FROM held s WHERE NOT s.again GROUP BY s.node, s.clock, s.origin HAVING count(*) > 1",
        leader="max(s.leader)",
        tick="max(s.tick)",
        txid="min(s.txid)",
    ),
    _finding(
        f"{_PLACE}, ' repeats ', s.txid, ', which was not applied before it'",
        "FROM held s LEFT JOIN (SELECT node, clock, origin, min(seq) AS seq FROM held WHERE NOT again "
        "GROUP BY node, clock, origin) AS f ON f.node = s.node AND f.clock = s.clock AND f.origin = s.origin "
        "LEFT JOIN (SELECT node, max(clock) AS clock FROM mark GROUP BY node) AS m ON m.node = s.node "
        "WHERE s.again AND (f.seq >= s.seq OR (f.seq IS NULL AND s.clock > coalesce(m.clock, 0)))",
    ),
    _finding(
        "x.txid, ' stands for ', x.kinds, ' different transactions'",
        "FROM (SELECT clock, origin, min(txid) AS txid, count(DISTINCT content) AS kinds FROM good "
        "GROUP BY clock, origin HAVING count(DISTINCT content) > 1) AS x JOIN good e ON e.clock = x.clock "
        "AND e.origin = x.origin JOIN stored s ON s.eid = e.eid GROUP BY x.txid, x.kinds",
        node=_NONE,
        leader="max(s.leader)",
        tick="max(s.tick)",
        txid="x.txid",
    ),
]
_COMMAND = [
    _claims("command"),
    _finding(
        "'the command ', x.command, ' was applied as ', min(x.txid), ' and as ', max(x.txid)",
        "FROM (SELECT j.command, s.txid, min(s.leader) AS leader, min_by(s.tick, s.leader) AS tick FROM stored s "
        "JOIN joined j ON j.eid = s.eid WHERE NOT s.again GROUP BY j.command, s.txid) AS x GROUP BY x.command HAVING "
        "count(DISTINCT x.txid) > 1",
        node=_NONE,
        leader="max_by(x.leader, x.txid)",
        tick="max_by(x.tick, x.txid)",
        txid="max(x.txid)",
    ),
    _finding(
        "s.txid, ' has a command twice'",
        "FROM (SELECT eid FROM joined GROUP BY eid HAVING count(*) > count(DISTINCT command)) AS x "
        "JOIN stored s ON s.eid = x.eid WHERE NOT s.again",
    ),
]
_USERS = [
    _finding(
        f"{_PLACE}, ' has a command of the user ', n.user, CASE WHEN h.role < 0 THEN "
        "concat(', whom membership ', e.config, ' names as removed') "
        "ELSE concat(', who lacks the role for it in membership ', e.config) END",
        "FROM stored s JOIN good e ON e.eid = s.eid JOIN need_of n ON n.eid = e.eid "
        "JOIN holder h ON h.version = e.config AND h.name = n.user WHERE h.role < 0 OR h.role < n.role",
    )
]
_VOID = [_claims("void")]
_SAFE = [
    _finding(
        f"{_PLACE}, ' ran on a snapshot that was safe up to ', e.safe, ', and had not seen ', d.leader, d.upto, "
        "', which is not later than that'",
        "FROM due d LEFT JOIN past p ON p.eid = d.eid AND p.leader = d.leader JOIN stored s ON s.eid = d.eid "
        "JOIN good e ON e.eid = d.eid WHERE d.upto > coalesce(p.tick, 0)",
    )
]
_SCHEMA = [
    _finding(
        f"{_PLACE}, ' says that it ran on version ', d.ran_on, ' of the schema, and version ', d.version, "
        "' was in force'",
        "FROM (SELECT eid, ran_on, version FROM version_due UNION ALL SELECT e.eid, e.ran_on, u.version FROM good e "
        "CROSS JOIN usual_version u) AS d JOIN stored s ON s.eid = d.eid WHERE d.ran_on <> d.version",
    )
]
_ROLLBACKS = [
    _finding(
        f"{_PLACE}, ' says that ', e.origin, ' has given up ', c.txid, ', which is committed as ', p.leader, p.tick",
        "FROM stored s JOIN good e ON e.eid = s.eid JOIN gave_up g ON g.eid = e.eid "
        "JOIN good c ON c.clock = g.clock AND c.origin = g.origin JOIN place p ON p.eid = c.eid",
    ),
    _finding(
        f"{_PLACE}, ' says that ', e.origin, ' has given up a transaction that ', g.origin, ' began'",
        "FROM stored s JOIN good e ON e.eid = s.eid JOIN gave_up g ON g.eid = e.eid WHERE g.origin <> e.origin",
    ),
]
_WRITES = [
    _finding(f"{_PLACE}, ' ', e.unwritten", "FROM stored s JOIN entry e ON e.eid = s.eid WHERE e.unwritten IS NOT NULL")
]
_FORK = [
    _finding(
        "'nodes hold different entries as ', x.leader, x.tick, ' (', x.said, '); ', x.places, "
        "' places of the timeline differ'",
        "FROM (SELECT leader, min(tick) AS tick, min_by(said, tick) AS said, count(*) AS places FROM "
        "(SELECT leader, tick, "
        f"concat(min_by(node, hash), ' ', {_short('min(hash)')}, ', ', max_by(node, hash), ' ', {_short('max(hash)')}) "
        "AS said FROM (SELECT leader, tick, hash, min(node) AS node FROM (SELECT node, leader, tick, hash FROM held "
        "UNION ALL SELECT node, leader, tick, hash FROM mark) AS h GROUP BY leader, tick, hash) AS k "
        "GROUP BY leader, tick HAVING count(*) > 1) AS y GROUP BY leader) AS x CROSS JOIN given g",
        node="g.node",
        leader="x.leader",
        tick="x.tick",
        txid=_NONE,
    )
]
_LONGEST = (
    "(SELECT leader, max(tick) AS tick, max_by(node, tick) AS node FROM (SELECT leader, tick, min(node) AS node "
    "FROM held GROUP BY leader, tick) AS k GROUP BY leader) AS x"
)
_LOST = [
    _finding(
        "o.node, ' has lost the end of its own timeline: it ends at ', o.node, o.tick, ', and ', x.node, "
        "' has ', o.node, x.tick",
        f"FROM own_end o JOIN {_LONGEST} ON x.leader = o.node WHERE x.tick > o.tick",
        node="o.node",
        leader="o.node",
        tick="o.tick + 1",
        txid=_NONE,
        level="o.level",
    ),
    _finding(
        "g.node, ' ends at tick ', coalesce(h.tick, 0), ' of timeline ', x.leader, '; ', x.node, ' goes on to ', "
        "x.tick",
        f"FROM given g CROSS JOIN {_LONGEST} LEFT JOIN "
        "(SELECT node, leader, max(tick) AS tick FROM (SELECT node, leader, tick FROM held UNION ALL "
        "SELECT node, leader, tick FROM mark) AS y GROUP BY node, leader) AS h ON h.node = g.node "
        "AND h.leader = x.leader WHERE coalesce(h.tick, 0) < x.tick AND g.node <> x.leader",
        node="g.node",
        leader="x.leader",
        tick="coalesce(h.tick, 0) + 1",
        txid=_NONE,
        level=f"'{INFORMATION}'",
    ),
]
_CONFLICT = [
    _finding(
        "min(concat(a.leader, a.tick)), ' and ', min(concat(b.leader, b.tick)), "
        "' are both committed, and neither had seen the other', "
        "CASE WHEN max(t.kind) = 'members' OR max(u.kind) = 'members' "
        "THEN ', and one of them changes the membership' ELSE ', and both touch the same key' END, "
        "CASE WHEN count(DISTINCT m.obj) > 1 THEN concat(' (and ', count(DISTINCT m.obj) - 1, ' more keys)') ELSE '' "
        "END",
        "FROM met m LEFT JOIN seen n ON n.later = m.later AND n.earlier = m.earlier JOIN txn t ON t.tid = m.later "
        "JOIN txn u ON u.tid = m.earlier JOIN label a ON a.tid = m.later JOIN label b ON b.tid = m.earlier "
        "WHERE n.later IS NULL GROUP BY m.later, m.earlier",
        node=_NONE,
        leader="min(a.leader)",
        tick="min_by(a.tick, a.leader)",
        txid="min(t.txid)",
        obj="min(m.obj)",
    )
]

QUERIES: dict[str, list[str]] = {
    "bytes": _BYTES,
    "columns": _COLUMNS,
    "label": _LABEL,
    "density": _DENSITY,
    "hash": _HASH,
    "link": _LINK,
    "causality": _CAUSALITY,
    "clock": _CLOCK,
    "closure": _CLOSURE,
    "quorum": _QUORUM,
    "approval": _APPROVAL,
    "members": _MEMBERS,
    "txid": _TXID,
    "command": _COMMAND,
    "users": _USERS,
    "void": _VOID,
    "safe": _SAFE,
    "schema": _SCHEMA,
    "rollbacks": _ROLLBACKS,
    "writes": _WRITES,
    "fork": _FORK,
    "lost": _LOST,
    "conflict": _CONFLICT,
}


def question(law: str, names: str, limit: int) -> str:
    """Return the query for the first findings of a law, each with the number of all findings of each level.

    Args:
        names: the SQL that joins the nodes with an equal finding into one text (``Dialect.names``).
    """
    every = " UNION ALL ".join(QUERIES[law])
    merged = (
        f"SELECT level, leader, tick, txid, obj, text, {names.format('node')} AS node FROM ({every}) AS f "
        "GROUP BY level, leader, tick, txid, obj, text"
    )
    counts = ", ".join(
        f"sum(CASE WHEN level = '{level}' THEN 1 ELSE 0 END) OVER () AS {level}s" for level in (FAULT, INFORMATION)
    )
    return (
        f"SELECT level, node, leader, tick, txid, obj, text, {counts} FROM ({merged}) AS m "
        f"ORDER BY level, leader NULLS FIRST, tick NULLS FIRST, text LIMIT {limit}"
    )
