"""The final checks, on the journals of all nodes and on the clients' histories.

Every write of a row makes its next version, so versions show exactly which writes each reader saw. Commands have edges:
one read the row that another wrote, one overwrote the row that another read, or one ended before another began. The
graph must have no cycle, which is strict serializability of all writing commands and all strict reads together.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from graphlib import CycleError, TopologicalSorter
from random import Random
from typing import TYPE_CHECKING

import cbor2

from bedrockish.api.requests import SNAPSHOT, STALE, STRICT
from bedrockish.core.protocol.records import Prepared
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.errors import ReplayBlockedError
from bedrockish_journal.model.membership import pack_membership, read_membership
from bedrockish_journal.model.order import replay_order
from bedrockish_journal.model.transaction import MEMBERS, ROWS, SCHEMA, Transaction, Txid
from bedrockish_journal.model.vector import covers
from bedrockish_journal.storage.row import JournalRow
from bedrockish_journal.verify.chain import Chains
from bedrockish_journal.verify.entry_rules import EntryRules
from bedrockish_journal.verify.snapshots import TransactionSnapshots
from tools.sim.clients import Call
from tools.sim.database import NOTHING, DivergedError, Outcome, Row, apply, reads_journal, run_together, wants_clock
from tools.sim.schemas import activate
from tools.sim.talks import NOTHING as EMPTY

if TYPE_CHECKING:
    from tools.sim.world import World

Seen = dict[str, int]  # versions by key
Told = Callable[[tuple[str, int]], Entry | None]
REPLAYS = 3


def decode_seen(result: bytes) -> tuple[Seen, list[tuple[str, str]]]:
    """Return the versions of the rows that an execution read, and the ranges that it read."""
    _, reads, ranges, *_ = cbor2.loads(result)
    return reads, [(low.split(b"\0")[1].decode(), high.split(b"\0")[1].decode()) for low, high in ranges]


def strictly_told(call: Call) -> bytes | None:
    """Return the encoded result of a strict read, or of the reads behind a strict refusal; None for other calls."""
    if call.request.read != STRICT:
        return None
    if call.answer is not None:
        return call.answer.results if call.answer.place is None else None
    refused = call.error.rests_on if call.error is not None else None
    return refused.result if isinstance(refused, Prepared) else None


class Histories:
    """The journals and the clients' histories of a world."""

    def __init__(self, world: "World", calls: list[Call]) -> None:
        self.world, self.calls = world, calls
        self.entries: dict[tuple[str, int], Entry] = {}
        self.first: dict[Txid, Entry] = {}
        self.places: dict[Txid, list[tuple[str, int]]] = defaultdict(list)
        self.writers: dict[str, dict[int, Txid]] = defaultdict(dict)  # key -> version -> the transaction that wrote it
        self.values: dict[tuple[str, int], object] = {}  # (key, version) -> value

    def broken(self, law: str, story: str) -> None:
        """End the world because a law is broken."""
        self.world.broken(law, story)

    def check(self) -> None:
        """Check all laws of journals and histories."""
        self._timelines()
        rows = self._replays()
        self._nodes(rows)
        self._executions()
        self._acknowledged()
        self._stamps()
        self._read_values()
        self._sessions()
        self._journal_reads()
        self._order()
        self._feeds()
        self._auditors()

    def _auditors(self) -> None:
        """Check that a journal of all commits obeys the laws of ``journal verify``.

        The law ``writes`` is not checked, because rows have another form here. A removed node may have given a commit
        one more label before it learned of its removal. No other node accepts this label, so it is left out here, where
        its timeline would seem to continue after it was retired.
        """
        bodies: dict[Txid, bytes] = {}
        founding = pack_membership(self.world.founded)

        def original(clock: int, origin: str, _seq: int) -> bytes | None:
            return bodies.get(Txid(clock, origin))

        rules = EntryRules("all", founding, original, is_checked=lambda _: True)
        findings, snapshots = list(rules.begin()), TransactionSnapshots()
        ends = self._ends_of_retired()
        entries = [entry for (leader, tick), entry in self.entries.items() if tick <= ends.get(leader, tick)]
        for seq, entry in enumerate(replay_order(entries, Random(self.world.options.seed).random)):
            is_repeat = entry.txid in bodies
            bodies.setdefault(entry.txid, entry.transaction.body)
            findings += rules.check(_stored(seq, entry, is_repeat))
            snapshots.add(entry)
        findings += snapshots.check("all", rules.retired, lambda txid: sorted(self.places.get(txid, ())))
        for finding in findings:
            self.broken(f"journals obey the law {finding.check}", finding.text)

    def _ends_of_retired(self) -> dict[str, int]:
        """Return the last tick of each retired timeline; check that only second labels of commits come after it."""
        ends: dict[str, int] = {}
        for entry in self.first.values():
            if entry.transaction.kind == MEMBERS:
                said = read_membership(entry.transaction.changes)
                new = [leader for leader, since in said.retired.items() if since == said.version]
                ends.update((leader, entry.after.get(leader, 0)) for leader in new)
        for (leader, tick), entry in self.entries.items():
            if tick > ends.get(leader, tick) and len(self.places[entry.txid]) == 1:
                self.broken("what is retired ends there", f"{leader}{tick} commits {entry.txid}, as nothing else does")
        return ends

    def _timelines(self) -> None:
        """Check that timelines are dense, hash-linked and the same on all nodes, and that commands happen once."""
        for name, machine in self.world.machines.items():
            run = [entry for timeline in machine.disk.seen.timelines.values() for entry in timeline]
            chains = Chains(name)
            for entry in run:
                for finding in chains.check(_stored(0, entry, is_repeat=False)):
                    self.broken("timelines are whole", finding.text)
                if self.entries.setdefault(entry.place, entry).hash != entry.hash:
                    self.broken("timelines do not fork", f"{entry.place} differs on {name}")
        commands: dict[str, Txid] = {}
        for place, entry in sorted(self.entries.items()):
            self.places[entry.txid].append(place)
            self.first.setdefault(entry.txid, entry)
            if len(set(entry.transaction.commands)) < len(entry.transaction.commands):
                self.broken("a command happens once", f"{entry.txid} has one twice: {entry.transaction.commands}")
            for command in entry.transaction.commands:
                if commands.setdefault(command, entry.txid) != entry.txid:
                    self.broken("a command happens once", f"{command} is two transactions")
            self.world.counts["joined"] += len(entry.transaction.joined)
            if entry.transaction.kind == ROWS:
                for key, _, after in cbor2.loads(entry.transaction.changes):
                    self.values[key, after[0]] = after[1]
                    if self.writers[key].setdefault(after[0], entry.txid) != entry.txid:
                        self.broken("conflicting commits are ordered", f"two commits write {key} version {after[0]}")
        self.commands = commands
        self.world.counts["commits"] += len(self.first)
        self.world.counts["repeats"] += len(self.entries) - len(self.first)

    def _replays(self) -> dict[str, Row]:
        """Check that random valid orders of the journal give the same rows, and return the rows."""
        results: list[dict[str, Row]] = []
        for turn in range(REPLAYS):
            rows: dict[str, Row] = {}
            done: set[Txid] = set()
            waiting: Transaction | None = None
            try:
                for entry in replay_order(self.entries.values(), Random(self.world.options.seed * 10 + turn).random):
                    if entry.txid not in done:
                        done.add(entry.txid)
                        if waiting is not None and entry.transaction.schema > waiting.schema:
                            self._activate(rows, waiting)
                            waiting = None
                        if entry.transaction.kind == SCHEMA:
                            waiting = entry.transaction
                        apply(rows, entry.transaction)
            except ReplayBlockedError as error:
                self.broken("causes come first", str(error))
            except DivergedError as error:
                self.broken("every valid order will do", str(error))
            if waiting is not None:
                self._activate(rows, waiting)
            results.append(rows)
        if any(rows != results[0] for rows in results):
            self.broken("every valid order will do", "two replays differ")
        return results[0]

    def _activate(self, rows: dict[str, Row], change: Transaction) -> None:
        """Activate a schema change in a replay, and check that it has the same result as on the nodes."""
        found, known = activate(rows, change), self.world.laws.schemas.activations.get(change.txid)
        if found != known:
            self.broken("every valid order will do", f"{change.txid} finds {found} in a replay, {known} on the nodes")

    def _nodes(self, rows: dict[str, Row]) -> None:
        for machine in self.world.here():
            name, found = machine.name, machine.disk.seen.rows
            if found != rows:
                wrong = [key for key in {*rows, *found} if rows.get(key) != found.get(key)]
                self.broken("databases are equal", f"{name} differs from the journal in {sorted(wrong)}")

    def _executions(self) -> None:
        """Check that all programs, run serially in the order of their clocks, have the effects that journals record.

        Programs with isolation ``snapshot`` run on the rows that they read, but must overwrite the newest versions.
        """
        rows: dict[str, Row] = {}
        for txid in sorted(self.first):
            transaction = self.first[txid].transaction
            if transaction.kind != ROWS or transaction.result == EMPTY:
                continue
            alone = transaction.isolation == SNAPSHOT
            law = "snapshots are as they were" if alone else "serializable"
            if self.world.flips.misled.isdisjoint(transaction.commands):
                outcomes = self._run_again(transaction, self._view(transaction) if alone else rows)
                self._as_it_would(law, transaction, outcomes)
            try:
                apply(rows, transaction)
            except DivergedError as error:
                self.broken("no update is lost", f"{txid} {transaction.command}: {error}")

    def _as_it_would(self, law: str, transaction: Transaction, outcomes: list[Outcome]) -> None:
        """Check that a transaction has the answers and changes that its programs give when they run alone."""
        txid = transaction.txid
        for command, outcome in zip(transaction.commands, outcomes, strict=True):
            told = cbor2.loads(transaction.result_of(command))[0]
            if told != outcome.told:
                self.broken(law, f"{txid} {command} told {told}, in order {outcome.told}")
        if sorted(cbor2.loads(transaction.changes)) != sorted(outcomes[0].changes):
            self.broken(law, f"{txid} {transaction.command} changed what in order it would not")

    def _read_values(self) -> None:
        """Check that reads returned committed values, except for undetected damage."""
        for call in self.calls:
            if call.answer is None or call.answer.place is not None or call.request.command in self.world.flips.misled:
                continue
            told = [row for rows in cbor2.loads(call.answer.results)[0] for row in rows]
            for key, version, value in told:
                if version and self.values.get((key, version)) != value:
                    was = self.values.get((key, version))
                    what = f"{call.request.command} was told {value!r} for {key} version {version}, which is {was!r}"
                    self.broken("what is read was written", what)

    def _run_again(self, transaction: Transaction, rows: dict[str, Row]) -> list[Outcome]:
        programs = [self.world.laws.requests[command].statements for command in transaction.commands]
        # A program may use its clock, so it must run with the clock of its commit to have the same result.
        return run_together(rows, programs, transaction.txid.leader, transaction.txid.clock)

    def _view(self, transaction: Transaction) -> dict[str, Row]:
        """Return the rows that a transaction saw: the rows that it overwrote, and the versions that it read."""
        rows: dict[str, Row] = {
            key: (before[0], before[1]) for key, before, _ in cbor2.loads(transaction.changes) if before[0]
        }
        seen, _ = decode_seen(transaction.result)
        return rows | {key: (version, self.values.get((key, version))) for key, version in seen.items() if version}

    def _stamps(self) -> None:
        """Check that a transaction clock is later than all commits that were acknowledged before it was requested."""
        count, story = late_stamp(self.calls, self._told, self.world.laws.talked)
        self.world.counts["stamps"] += count
        if story:
            self.broken("stamps follow every acknowledged commit", story)

    def _told(self, place: tuple[str, int]) -> Entry | None:
        """Return the entry that an answer's place stands for.

        A place may be lost with its leader's file, if no other node had this label yet. The transaction is never lost,
        because other nodes have approved it, and commit it at another place.
        """
        entry = self.entries.get(place)
        if entry is None and place[0] in self.world.machines and self.world.machines[place[0]].forgot:
            was = self.world.laws.entries.get(place)
            entry = self.first.get(was.txid) if was is not None else None
        return entry

    def _acknowledged(self) -> None:
        """Check that acknowledged commits are in the journal, with the acknowledged results."""
        for call in self.calls:
            answer = call.answer
            if answer is None or answer.place is None:
                if answer is not None and call.request.command in self.commands:
                    self.broken("an answer is true", f"{call.request.command} was answered as a read")
                continue
            entry = self._told(answer.place)
            command = call.request.command
            if entry is None or command not in entry.transaction.commands:
                self.broken("acknowledged is for ever", f"{call.request.command} was told {answer.place}: {entry}")
            elif entry.transaction.result_of(command) != answer.results:
                self.broken("an answer is true", f"{call.request.command} was answered what the journal does not say")
            elif (
                answer.place[0] not in self.world.membership.retired  # vectors omit a retired timeline
                and not covers(answer.token.vector, dict([answer.place]))
            ):
                self.broken("tokens cover answers", f"{call.request.command}'s token lacks its own {answer.place}")

    def _journal_reads(self) -> None:
        """Check that a strict read of the journal sees every commit that was acknowledged before the read began."""
        told: list[tuple[float, tuple[str, int]]] = []
        for call in self.calls:
            if call.ended is not None and call.answer is not None and call.answer.place is not None:
                told.append((call.ended, call.answer.place))
        told.sort()
        for call in self.calls:
            if call.request.read != STRICT or call.answer is None or not reads_journal(call.request):
                continue
            *_, [[_, _, seen]] = cbor2.loads(call.answer.results)[0]
            self.world.counts["strict reads of the journal"] += 1
            for ended, place in told:
                if ended >= call.began:
                    break
                entry = self._told(place)
                places = [place] if entry is None else self.places[entry.txid]
                if not any(seen.get(leader, 0) >= tick for leader, tick in places):
                    what = f"{call.request.command} began at {call.began:.4f} and saw {seen}, without {place}"
                    self.broken("strict reads of the journal see every acknowledged commit", what)

    # -- sessions and reads ----------------------------------------------------------------------------------------

    def _sessions(self) -> None:
        """Check that sessions read their own writes and never go back, and that each read is a snapshot."""
        past = self._pasts()
        sessions: dict[str, Seen] = defaultdict(dict)
        for call in self.calls:  # in the order in which they ended
            if call.answer is None:
                continue
            seen, ranges = decode_seen(call.answer.results)
            if call.answer.place is None or call.request.isolation == SNAPSHOT:
                self._snapshot(call, seen, ranges, past)
            if call.request.read == STALE and call.answer.place is None:
                continue
            floor = sessions[call.client]
            for key in self._keys(seen, ranges):
                version = seen.get(key, 0)
                if version < floor.get(key, 0) and not call.again:
                    what = f"{call.request.command} saw {key} version {version} after {floor[key]}"
                    self.broken("sessions go forward", what)
            for key, version in seen.items():
                floor[key] = max(floor.get(key, 0), version)
            if call.answer.place is not None:
                transaction = self.first[self.commands[call.request.command]].transaction
                for key, _, after in cbor2.loads(transaction.changes) if transaction.kind == ROWS else ():
                    floor[key] = max(floor.get(key, 0), after[0])

    def _keys(self, seen: Seen, ranges: Iterable[tuple[str, str]]) -> set[str]:
        inside = {key for low, high in ranges for key in self.writers if low <= key < high}
        return inside | set(seen)

    def _pasts(self) -> dict[Txid, Seen]:
        pasts: dict[Txid, Seen] = {}
        prefix: dict[tuple[str, int], Seen] = {}  # versions in a timeline up to a tick, with all their causes
        for txid in sorted(self.first):
            entry = self.first[txid]
            seen: Seen = {}
            for place in entry.after.items():
                for key, version in self._prefix(place, prefix, pasts).items():
                    seen[key] = max(seen.get(key, 0), version)
            if entry.transaction.kind == ROWS:
                for key, _, after in cbor2.loads(entry.transaction.changes):
                    seen[key] = max(seen.get(key, 0), after[0])
            pasts[txid] = seen
        return pasts

    def _prefix(self, place: tuple[str, int], known: dict[tuple[str, int], Seen], pasts: dict[Txid, Seen]) -> Seen:
        leader, tick = place
        start = tick
        while start and (leader, start) not in known:
            start -= 1
        seen = dict(known.get((leader, start), {}))
        for number in range(start + 1, tick + 1):
            for key, version in pasts.get(self.entries[leader, number].txid, {}).items():
                seen[key] = max(seen.get(key, 0), version)
            known[leader, number] = dict(seen)
        return seen

    def _snapshot(self, call: Call, seen: Seen, ranges: Iterable[tuple[str, str]], past: dict[Txid, Seen]) -> None:
        keys = self._keys(seen, ranges)
        for key in keys:
            version = seen.get(key, 0)
            if not version:
                continue
            writer = self.writers.get(key, {}).get(version)
            if writer is None:
                self.broken("reads see commits", f"{call.request.command} saw {key} version {version}, which is none")
                return
            for other in keys:
                if past[writer].get(other, 0) > seen.get(other, 0):
                    self.broken(
                        "reads are snapshots",
                        f"{call.request.command} saw {key} version {version} by {writer} and {other} version "
                        f"{seen.get(other, 0)}, which is {past[writer][other]} in its past",
                    )

    def _order(self) -> None:
        """Check strict serializability: reads, writes, overwrites and the real time of answers make no cycle."""
        graph = TopologicalSorter[object]()
        readers: list[tuple[object, Seen, Iterable[tuple[str, str]]]] = []
        for txid, entry in self.first.items():
            if entry.transaction.kind == ROWS and entry.transaction.isolation != SNAPSHOT:
                readers.append((txid, *decode_seen(entry.transaction.result)))
        for number, call in enumerate(self.calls):
            told = strictly_told(call)
            if told is not None:
                readers.append((number, *decode_seen(told)))
        for versions in self.writers.values():
            for version, txid in versions.items():
                if version > 1 and version - 1 in versions:
                    graph.add(txid, versions[version - 1])
        for reader, seen, ranges in readers:
            for key in self._keys(seen, ranges):
                version, versions = seen.get(key, NOTHING[0]), self.writers.get(key, {})
                for other, before in ((versions.get(version), True), (versions.get(version + 1), False)):
                    if other is not None and other != reader:
                        graph.add(*((reader, other) if before else (other, reader)))
        self._real_time(graph)
        try:
            graph.prepare()
        except CycleError as error:
            steps = [step for step in error.args[1] if not isinstance(step, tuple) or step[0] != "time"]
            self.broken("strictly serializable", " < ".join(map(self._name, steps)))

    def _real_time(self, graph: TopologicalSorter[object]) -> None:
        moments: list[tuple[float, int, object]] = []
        for number, call in enumerate(self.calls):
            who: object = number if call.answer is None or call.answer.place is None else None
            who = self.commands[call.request.command] if who is None else who
            if isinstance(who, int) and strictly_told(call) is None:
                continue
            if not call.again:
                moments.append((call.began, 0, who))
            if call.ended is not None and (call.answer is not None or isinstance(who, int)):
                moments.append((call.ended, 1, who))
        moment = 0
        for _, kind, who in sorted(moments, key=lambda item: item[:2]):
            if kind == 0:
                graph.add(who, ("time", moment))
            else:
                graph.add(("time", moment + 1), ("time", moment))
                moment += 1
                graph.add(("time", moment), who)

    def _feeds(self) -> None:
        """Check that every feed reader has seen each transaction once, in order, up to its cursor."""
        order = sorted(self.first)
        for reader in self.world.readers:
            if reader.seen != order[: len(reader.seen)]:
                wrong = next(pair for pair in zip(reader.seen, order, strict=False) if pair[0] != pair[1])
                self.broken("the feed has each once, in order", f"{reader.name} was told {wrong[0]}, not {wrong[1]}")

    def _name(self, step: object) -> str:
        if isinstance(step, int):
            return f"{self.calls[step].request.command} (read)"
        assert isinstance(step, Txid)
        return f"{self.first[step].transaction.command} ({step})"


def _stored(seq: int, entry: Entry, is_repeat: bool) -> JournalRow:
    """Return an entry as a row of a journal."""
    transaction = entry.transaction
    return JournalRow(
        *(seq, entry.leader, entry.tick, entry.txid.clock, entry.txid.leader, transaction.command, transaction.kind),
        *(int(is_repeat), 0, entry.label, transaction.body, entry.prev, entry.hash),
    )


def late_stamp(calls: Iterable[Call], told: Told, talked: Collection[str]) -> tuple[int, str]:
    """Return the number of clocks in answers, and a description of the first that breaks the law, or an empty text.

    A transaction clock is later than all acknowledgements before its request, to any client. Commits are
    acknowledgements, and so are clocks: a client that asked only for a clock may rely on later clocks being greater.

    Args:
        told: returns the entry that an answer's place stands for.
        talked: commands that were interactive transactions, which draw their clock earlier than they commit.
    """
    known = list(calls)
    moments = [(call.began, 0, number) for number, call in enumerate(known)]
    moments += [(call.ended, 1, number) for number, call in enumerate(known) if call.ended is not None]
    count, latest, before = 0, 0, {}
    for _, ends, number in sorted(moments):
        call = known[number]
        if not ends:
            before[number] = latest
            continue
        if call.request.command in talked and call.answer is not None and call.answer.place is None:
            continue  # an open transaction's clock is checked at its commit
        clock = _clock(call, told)
        # A command that was sent again may have happened at its first attempt, with an earlier clock.
        if clock and wants_clock(call.request) and not call.again and call.request.command not in talked:
            count += 1
            if clock <= before[number]:
                return count, f"{call.request.command} was told {clock:x}, after {before[number]:x} was acknowledged"
        latest = max(latest, clock)
    return count, ""


def _clock(call: Call, told: Told) -> int:
    """Return the clock that a client knows from its answer; 0 if the answer has no clock."""
    if call.answer is None:
        return 0
    if call.answer.place is not None:
        entry = told(call.answer.place)
        return entry.txid.clock if entry is not None else 0
    found = cbor2.loads(call.answer.results)[0]
    return int(found[0][0][2]) if call.request.statements[0].sql == "clock" and found else 0
