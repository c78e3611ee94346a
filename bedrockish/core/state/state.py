"""The facts that one node knows, which all parts of the core share.

Each kind of fact has a class of its own, with its invariants and the operations that keep them. Such a class knows only
the objects that it is made with. ``State`` has the operations that concern several kinds of facts. The coordinator, the
voter, recovery, the apply queue and safe time act on the facts.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from bedrockish.api.requests import Token
from bedrockish.core.protocol.effects import Activate, Keep, KeepHold, SetMembers
from bedrockish.core.protocol.events import Now
from bedrockish.core.protocol.health import Health
from bedrockish.core.protocol.messages import Reserved
from bedrockish.core.protocol.records import Recovered
from bedrockish.core.state.access_index import Conflict
from bedrockish.core.state.certifier import command_key
from bedrockish.core.state.clock import Clock
from bedrockish.core.state.commit_window import CommitWindow
from bedrockish.core.state.conflict_records import Contests
from bedrockish.core.state.file_lookups import EMPTY_FILE, FileLookups
from bedrockish.core.state.outbox import Outbox, Timer, Timers
from bedrockish.core.state.packed_commits import Place
from bedrockish.core.state.pieces import Pieces
from bedrockish.core.state.roster import Peer, Roster
from bedrockish.core.state.schema import SchemaState
from bedrockish.core.state.settings import SCHEMA_GRACE_MS, Settings
from bedrockish.core.state.timelines import Timelines
from bedrockish.core.state.votes import Votes
from bedrockish_journal.model.access_set import object_of
from bedrockish_journal.model.clock import CLOCK_LIMIT, milliseconds, moved
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.membership import Membership
from bedrockish_journal.model.transaction import Transaction, Txid, decode_transaction
from bedrockish_journal.model.vector import Vector, covers

LOOKED_UP_MAX = 20_000  # most commits of the journal that one lookup compares, in some tenths of a second

COMMIT_S, COMMIT_S_MAX = 0.005, 0.1  # seconds from BEGIN to the quorum: the first average; the bound of one sample
WEIGHT = 0.2  # the weight of the newest commit in the average


class State:
    """The facts of one node.

    Why so large: All parts of the core share it: each attribute is one kind of facts, and each method needs several
    kinds.
    """

    def __init__(
        self,
        recovered: Recovered,
        settings: Settings,
        draw: Callable[[], float],  # returns a random number in [0, 1)
        now: Now,
        *,
        follows_wall: bool = True,
        lookups: FileLookups = EMPTY_FILE,
    ) -> None:
        # The node's name, the random id of its file, and the number of durable batches of the file.
        self.me, self.store, self.batches = recovered.node, recovered.store, recovered.batches
        self.settings, self.draw = settings, draw
        self._lookups = lookups
        self.health = Health(recovered.alarms)
        promised = recovered.ceiling, recovered.cut, recovered.safe, recovered.settled
        self.clock = Clock(settings, now, *promised, follows_wall=follows_wall)
        self.roster = Roster(recovered, self.health, now.seconds)
        self.timelines = Timelines(recovered, self.roster)
        self.pieces = Pieces(settings, dict(recovered.pieces), dict(recovered.named))
        self.outbox = Outbox(self.roster, self.clock, self.pieces)
        self.timers = Timers(self.clock)
        self.votes = Votes(self.me, self.clock, self.pieces, self.outbox)
        # The commits that conflict tests still need.
        self.commit_window = CommitWindow(recovered.applied)
        self.schema = SchemaState(recovered.schema)
        # Readers that still need the journal: how often each began, and the clock from which on it needs the journal.
        self.holds: dict[str, tuple[int, int]] = dict(recovered.holds)
        # Decided transactions that fit no node's tables: not applied before an operator has decided.
        self.blocked = recovered.blocked
        self.stuck = ""  # why this node cannot get missing entries, for the operator; empty if it can
        self.counts: Counter[str] = Counter()  # counters of events by name, for the status and the metrics
        self.contests = Contests()  # the leaders that compete for the same rows
        self.reserved: Reserved = None  # the reservation of a request of this node, as gossip tells it
        self.doubts = 0  # how often the rows here differed from the rows that a transaction rests on
        self.progress = False  # whether this step applied an entry, or put a schema change in force
        self.commit_s = COMMIT_S  # seconds that our recent transactions took from BEGIN to the quorum
        self.answer_s = 0.0  # seconds from BEGIN until voters approved our recent transactions
        self._recover(recovered)

    def _recover(self, recovered: Recovered) -> None:
        votes, window, settled = self.votes, self.commit_window, self.clock.settled
        # Before the window is filled, because ``add`` compares each entry with the retired timelines.
        window.retire(self.roster.membership.retired.keys())
        places: list[Place] = []
        for entry in recovered.window:
            places.append(entry.place)
            window.add(entry.place, entry.transaction)
            # A settled commit is not remembered: ``outcome`` looks it up in the journal.
            if entry.txid.clock > settled:
                # If the commit was adopted, its second label may still arrive, and must be recognized as a repeat.
                votes.done.add(entry.txid)
                votes.outcomes[entry.txid] = True
            window.pack(settled, ())
        window.set_floor(recovered.applied, places)
        # After the window is filled, so that a vote on a transaction in the journal is dropped and not restored.
        for vote in recovered.votes:
            votes.restore(vote, is_applied=self.is_in_journal(vote.txid))
        lowest = votes.pending.smallest_clock()
        if lowest is not None:
            # The file may be a copy with another node's cut. A transaction that this node holds may still commit, so
            # this node's cut must be below the transaction's clock.
            self.clock.reopen(lowest)
        if recovered.scheduled is not None:
            self.schedule(recovered.scheduled)

    def count_batches(self, batches: int) -> None:
        """Record how many durable batches the file has seen."""
        self.batches = batches

    # -- time ------------------------------------------------------------------------------------------------------

    def set_now(self, now: Now) -> None:
        """Pass on a reading of the driver's clocks; the events of one turn share a reading."""
        if now is not self.clock.reading:
            self.clock.set_now(now, self.roster.walls_needed)

    @property
    def knows_wall(self) -> bool:
        """Whether enough voters have reported their wall clocks since this node started."""
        return bool(self.roster.voters) and len(self.clock.walls) >= self.roster.walls_needed

    def hear_wall(self, peer: Peer, wall_ms: int) -> None:
        """Record a peer's wall clock."""
        peer.wall_ahead_ms = wall_ms - int(self.clock.now.seconds * 1000)
        self._hear_walls()

    def _hear_walls(self) -> None:
        # Only walls of voters: a majority of the voters decides how far a node believes its wall clock.
        peers = self.roster.peers.items()
        self.clock.hear_walls(peer.wall_ahead_ms for node, peer in peers if self.roster.is_voter(node))

    def hear_clock(self, peer: str, clock: int) -> bool:
        """Move up to the clock of a message without a promise or an outcome; return False if the clock is refused."""
        ahead = self.clock.ahead_ms(clock)
        # Record how far the clock is ahead, followed or not: ``status`` names the peer.
        known = self.roster.peers.get(peer)
        if known is not None:
            # Before a majority has reported its wall clocks, every clock is ahead of the known walls, and no clock
            # counts as wrong.
            known.ahead_ms = ahead if self.clock.majority_wall_ms else 0
        if ahead:
            return False
        self.clock.adjust(clock)
        return True

    def keep_ceiling(self) -> None:
        """Raise the ceiling of the clock if the clock is near it, and make the new ceiling durable."""
        if self.clock.needs_ceiling:
            # First in the step: the new ceiling must be durable before a clock above the old one leaves this node.
            self.outbox.emit_first(Keep("clock_ceiling", self.clock.raise_ceiling()))

    # -- members ---------------------------------------------------------------------------------------------------

    def set_membership(self, membership: Membership) -> None:
        """Count votes by a new membership from now on."""
        self.roster.set_membership(membership, self.clock.now.seconds)
        self._hear_walls()

    def check_joined(self) -> None:
        """Become an ordinary member once all commits are applied that the cluster had when it added this node."""
        if self.roster.join_if_caught_up(self.timelines.applied, self.clock.now.seconds):
            self._hear_walls()
            self.outbox.emit(Keep("joining", 0))
            self.outbox.emit(SetMembers(self.roster.membership))

    def note_lost_promise(self, reason: str) -> None:
        """Record in the file that it lacks some of this node's promises, so that the node never votes again.

        The reason is stored because the peer that knows of the lost promises may leave.
        """
        if self.roster.note_lost_promise(reason):
            self.outbox.emit(Keep("lost", reason))

    def give_up_fetching(self, reason: str) -> None:
        """Record the reason, in words, why this node will never get the entries that it lacks."""
        self.stuck = reason

    @property
    def trouble(self) -> str:
        """Why this node takes no requests, in words; empty if it takes requests."""
        roster, me = self.roster, self.me
        if roster.barred:
            return roster.barred
        if not self.health.reads:
            return self.health.reason
        if self.stuck:
            return self.stuck
        if roster.joining is not None:
            return f"node {me} is new and still catching up; ask {', '.join(roster.joining.membership.voters)}"
        if me not in roster.membership.members:
            return f"node {me} is no longer a member of the cluster; ask {', '.join(roster.voters)}, and stop this node"
        return ""

    def note_rival(self, key: bytes, other: Txid | None) -> None:
        """Record that another leader's transaction conflicted with one of ours."""
        # A node that no longer votes does not lead either, so no request has to leave it a turn.
        if other is not None and other.leader in self.roster.voters:
            self.contests.note_loss(object_of(key), other.leader, self.clock.now.seconds)

    def note_commit(self, seconds: float) -> None:
        """Record how many seconds after its BEGIN one of our transactions had its quorum."""
        # A commit that had to wait for a dead voter does not show the usual time, so it counts only up to a bound.
        self.commit_s += WEIGHT * (min(seconds, COMMIT_S_MAX) - self.commit_s)

    # -- the facts ----------------------------------------------------------------------------------------------

    def has_seen(self, token: Token) -> bool:
        """Return whether this node has everything that a session has seen, and the schema that was in force then."""
        if token.clock > self.clock.value and self.clock.is_absurd(token.clock):
            return False
        # The session has seen the next schema; here it would find the old one.
        if self.schema.scheduled is not None and self.schema.is_behind(token.clock):
            return False
        # The entry of a tick in the token may be lost together with all nodes that had it. Then safe time at or above
        # the token's clock proves that this node lacks no commit up to the token.
        return covers(self.timelines.applied, token.vector) or (token.clock > 0 and self.clock.safe >= token.clock)

    def read_clock(self) -> int:
        """Return the clock for the token of a read at this node now: above the clock of every applied transaction.

        The clock is also below the activation of the scheduled schema change: with a later clock, the session would
        count as having seen the next schema, and would wait even here until the change is in force. Both bounds can
        hold, because every transaction that is applied before the activation has a smaller clock.
        """
        clock, scheduled = self.clock.read(), self.schema.scheduled
        return clock if scheduled is None else min(clock, scheduled.activates - 1)

    def happened(self, commands: Iterable[str], own: Txid | None = None) -> Conflict | None:
        """Return a transaction other than ``own`` that has executed one of these commands already, or None.

        Such a transaction counts even if the base of ``own`` has it: before the execution, the leader of ``own``
        searched for the command, and did not find it.
        """
        for command in commands:
            key = command_key(command)
            # Search the window first: it has entries that are taken and not applied yet, which the journal lacks.
            for txid in self.commit_window.writers_of(key):
                if txid != own:
                    return Conflict(txid, key)
            found = self._lookups.find_command(command)
            if found is not None and found != own:
                return Conflict(found, key)
        return None

    def read_body(self, body: bytes) -> Transaction:
        """Return the transaction that a body encodes.

        Raises:
            EntryMalformedError: the body is malformed.
        """
        known = self.pieces.decoded
        return known if known is not None and known.body == body else decode_transaction(body)

    def outcome(self, txid: Txid) -> bool | None:
        """Return whether a transaction was committed; None if it is open or unknown.

        Outcomes of applied and settled transactions above safe time are looked up in the journal, because a node that
        was away for long applies more than it could keep in memory. Up to safe time, only the memory is searched.
        """
        # Memory first: a transaction that ended in this step is not in the journal yet.
        found = self.votes.outcomes.get(txid)
        return True if found is None and self.is_in_journal(txid) else found

    def is_applied(self, txid: Txid) -> bool:
        """Return whether a transaction above safe time is applied, at any of its places.

        Up to safe time, False does not mean that the transaction is not applied.
        """
        return txid in self.votes.done or self.is_in_journal(txid)

    def is_in_journal(self, txid: Txid) -> bool:
        """Return whether the journal has a transaction; entries of this step are not in the journal yet.

        Only settled clocks above safe time are looked up; for other clocks, False says nothing.
        """
        return self.clock.safe < txid.clock <= self.clock.settled and self._lookups.has_applied(txid)

    def is_in_base(self, txid: Txid, base: Vector) -> bool:
        """Return whether a base has a commit, under any of the commit's places in the journal."""
        retired = self.roster.membership.retired
        return any(leader in retired or base.get(leader, 0) >= tick for leader, tick in self._lookups.find_places(txid))

    def safe_of(self, base: Vector) -> int:
        """Return the clock up to which a base has all commits: safe time, or less if an older commit is outside it."""
        if covers(base, self.timelines.applied):
            return self.clock.safe
        lacking = self.commit_window.oldest_outside(base)
        return self.clock.safe if lacking is None else min(self.clock.safe, lacking - 1)

    def conflicts_outside(self, transaction: Transaction) -> bool | None:
        """Return whether a transaction conflicts with a commit outside its base; None if it is too old to compare.

        Commits that the conflict window has dropped are looked up in the journal: after a restart they may be many.
        """
        access_set, base, floor = transaction.access_set, transaction.base, self.commit_window.floor
        for found in self.commit_window.conflicts(access_set, base, transaction.txid):
            # After a restart the window may lack a place of the commit; the journal has all its places.
            if not self.is_in_base(found.other, base):
                return True
        lacking = {leader: tick for leader, tick in floor.items() if base.get(leader, 0) < tick}
        if not lacking:
            return False
        if sum(tick - base.get(leader, 0) for leader, tick in lacking.items()) > LOOKED_UP_MAX:
            return None  # no voter approves so old a transaction, and reading so many commits would block the node
        seen = {**base, **dict.fromkeys(self.roster.membership.retired, CLOCK_LIMIT)}  # no base names retired timelines
        return self._lookups.conflicts(access_set, seen, lacking)

    def why_rows_differ(self, transaction: Transaction) -> str | None:
        """Return why the before-images of a transaction differ from the rows here; empty if they are equal.

        None: the rows are not compared yet, because this step applies entries, which are not in the tables yet, or
        because the transaction is so large that the driver compares it in parallel. In both cases the voter judges the
        transaction again later.

        The caller has checked that the base is applied and that no commit outside the base conflicts. So the rows
        that the transaction has read or changed are the same at every sound node.
        """
        if self._lookups.compare_rows is None:
            return ""
        if self.outbox.is_applying:
            # The tables have the entries of this step only after the step; the timer then calls the voter.
            self.timers.set(0, Timer.VOTES)
            return None
        why = self._lookups.compare_rows(transaction)
        if why:
            self.doubts += 1
            self.counts["rows_differ"] += 1
        return why

    def hold_journal(self, name: str, hold: tuple[int, int]) -> None:
        """Record durably the clock from which a reader needs the journal."""
        self.holds[name] = hold
        self.outbox.emit(KeepHold(name, *hold))

    # -- applying --------------------------------------------------------------------------------------------------

    def add_entry(self, entry: Entry) -> None:
        """Add the next entry of a timeline; its commit is known from now on."""
        txid = entry.txid
        self.timelines.add_entry(entry)
        # Each transaction that this node begins from now on has a later clock than all commits that it knows.
        self.clock.adjust(txid.clock)
        since = self.votes.pending.since.get(txid)
        if since is not None:
            self._note_pending(entry, since)
        # Test for a repeat before the end is recorded: a repeat was committed at another place, and so is not pending.
        is_repeat = txid.clock <= self.clock.safe or (since is None and self.outcome(txid) is True)
        # The transaction leaves ``pending`` here and enters the commit window below, with no conflict test in between.
        self.votes.end(txid, commit=True)
        # V15 refuses each base that lacks a commit of this age or older, so such commits are not compared any more.
        forgotten = moved(self.clock.settled, -self.settings.conflict_window_ms)
        # Our own commits are added even if they are older: their answers look up their places in the window.
        is_late = txid.clock <= forgotten and txid.leader != self.me
        window, place = self.commit_window, entry.place
        if not ((is_late or is_repeat) and window.pass_over(place, txid, is_repeat=is_repeat)):
            window.add(place, entry.transaction)

    def _note_pending(self, entry: Entry, since: float) -> None:
        """Record how long a commit of another leader was pending here: we wait longer before we ask a slow leader."""
        peer = self.roster.peers.get(entry.leader)
        # An adopted transaction does not count: it was pending until a recovery finished it.
        if peer is not None and entry.leader == entry.txid.leader:
            peer.pending_s += WEIGHT * (self.clock.now.seconds - since - peer.pending_s)

    def note_answer(self, seconds: float) -> None:
        """Record how many seconds after its BEGIN a voter has approved one of our transactions."""
        self.answer_s += WEIGHT * (seconds - self.answer_s)

    @property
    def answer_pause_s(self) -> float:
        """The seconds after which this node sends a message without an answer again for the first time."""
        return 2 * max(self.settings.suspicion_ms / 1000, self.answer_s)

    def apply(self, entry: Entry) -> None:
        """Count an entry as applied."""
        self.timelines.apply(entry.leader, entry.tick)
        self.votes.apply(entry.txid)
        self.progress = True

    def schedule(self, change: Transaction) -> None:
        """Schedule the activation of an applied schema change."""
        self.schema.schedule(change)
        left_ms = milliseconds(change.activates) - milliseconds(self.clock.read())
        grace_ms = SCHEMA_GRACE_MS * (len(self.roster.voters) > 1)
        # With other voters, the timer fires a moment later than the activation: a BEGIN from before the
        # activation may still be under way, and would be TOO LATE.
        self.timers.set(max(0, left_ms) + grace_ms, Timer.SCHEMA_DUE, change.txid)

    def activate(self) -> None:
        """Put the scheduled schema change in force; exactly the transactions below its activation are applied now."""
        self.outbox.emit(Activate(self.schema.activate().txid))
        self.progress = True  # requests and entries may have waited for the change

    def take_progress(self) -> bool:
        """Return whether an entry was applied, or a schema change came into force, since the last call."""
        progress, self.progress = self.progress, False
        return progress
