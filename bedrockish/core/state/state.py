"""The facts that one node knows: the ground that all parts of the core stand on.

Each kind of fact has a part of its own, with the operations that keep it consistent and the invariants that hold
between two of them; a part knows only those that it is made with. This class has the operations that concern several.
The coordinator, the voter, recovery, the apply queue and safe time act on the facts.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from bedrockish.api.requests import Token
from bedrockish.core.protocol.effects import Activate, Keep, KeepHold, SetMembers
from bedrockish.core.protocol.events import Now
from bedrockish.core.protocol.health import Health
from bedrockish.core.protocol.messages import Reserved
from bedrockish.core.protocol.records import Membership, Recovered
from bedrockish.core.state.access_index import Conflict
from bedrockish.core.state.certifier import command_key
from bedrockish.core.state.clock import Clock
from bedrockish.core.state.commit_window import CommitWindow
from bedrockish.core.state.contention import Contests
from bedrockish.core.state.file_lookups import EMPTY_FILE, FileLookups
from bedrockish.core.state.outbox import Outbox, Timer, Timers
from bedrockish.core.state.packed_commits import Place
from bedrockish.core.state.pieces import Pieces
from bedrockish.core.state.roster import Peer, Roster
from bedrockish.core.state.schema import Schema
from bedrockish.core.state.settings import SCHEMA_GRACE_MS, Settings
from bedrockish.core.state.timelines import Timelines
from bedrockish.core.state.votes import Votes
from bedrockish_journal.model.access_set import object_of
from bedrockish_journal.model.clock import CLOCK_LIMIT, milliseconds, moved
from bedrockish_journal.model.entry import Entry
from bedrockish_journal.model.transaction import Transaction, Txid, decode_transaction
from bedrockish_journal.model.vector import Vector, covers

LOOKED_UP_MAX = 20_000  # commits that are compared in the journal: some tenths of a second

COMMIT_S, COMMIT_S_MAX = 0.005, 0.1  # from BEGIN to the quorum: until it is known, and at most
WEIGHT = 0.2  # of the newest commit in the average


class State:
    """The facts of one node.

    Why so large: All parts of the core share it: an attribute is a part of the facts, and a method needs several of the
    parts.

    Attributes:
        me, store, batches: its name, the random id of its file, and how many durable batches that has seen.
        settings: timings and bounds.
        draw: gives a number in [0, 1) each time.
        health: its alarms, and the work that it still does.
        clock: its time. roster: the members. timelines: how far each is here.
        pieces: of large messages. outbox: this step's effects for the driver. timers: the calls that are due later.
        votes: its promises. commit_window: commits that conflict tests still need. schema: which is in force.
        holds: readers that still need the journal, each with how often it began and from which clock on.
        blocked: decided transactions that fit nowhere: not applied before an operator has decided.
        stuck: why this node cannot get the entries that it lacks, for people; empty if it can.
        counts: how often things happened, for people. contests: the leaders that compete for the same rows.
        reserved: the reservation of a request of this node, as gossip tells it.
        doubts: how often the rows here differed from those that a transaction was made of.
        progress: something was applied, or came into force, in this step.
        commit_s: how long ours take from BEGIN to the quorum, lately, in seconds.
        answer_s: how long after BEGIN voters approve ours, lately, in seconds.
    """

    def __init__(
        self,
        recovered: Recovered,
        settings: Settings,
        draw: Callable[[], float],
        now: Now,
        *,
        follows_wall: bool = True,
        lookups: FileLookups = EMPTY_FILE,
    ) -> None:
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
        self.commit_window = CommitWindow(recovered.applied)
        self.schema = Schema(recovered.schema)
        self.holds: dict[str, tuple[int, int]] = dict(recovered.holds)
        self.blocked = recovered.blocked
        self.stuck = ""
        self.counts: Counter[str] = Counter()
        self.contests = Contests()
        self.reserved: Reserved = None
        self.doubts = 0
        self.progress = False
        self.commit_s = COMMIT_S
        self.answer_s = 0.0
        self._recover(recovered)

    def _recover(self, recovered: Recovered) -> None:
        votes, window, settled = self.votes, self.commit_window, self.clock.settled
        # Before the window is filled: ``add`` compares each entry with the retired timelines.
        window.retire(self.roster.membership.retired.keys())
        places: list[Place] = []
        for entry in recovered.window:
            places.append(entry.place)
            window.add(entry.place, entry.transaction)
            # A settled commit needs no memory: the journal tells whether it has happened (``outcome``).
            if entry.txid.clock > settled:
                # Its second label may still come, if it was adopted: then it has to be known as a repeat.
                votes.done.add(entry.txid)
                votes.outcomes[entry.txid] = True
            window.pack(settled, ())
        window.reaches_back_to(recovered.applied, places)
        # After the window: a vote on a transaction in the journal is dropped, and not held again.
        for vote in recovered.votes:
            votes.restore(vote, is_applied=self.is_in_journal(vote.txid))
        lowest = votes.pending.smallest_clock()
        if lowest is not None:
            # The file may be a copy with another node's cut; a transaction that this node holds may still commit, so no
            # cut is past it.
            self.clock.reopen(lowest)
        if recovered.scheduled is not None:
            self.schedule(recovered.scheduled)

    def count_batches(self, batches: int) -> None:
        """Note how many durable batches the file has seen."""
        self.batches = batches

    # -- time ------------------------------------------------------------------------------------------------------

    def set_now(self, now: Now) -> None:
        """Take a reading of the driver's clocks; several events of one turn share one."""
        if now is not self.clock.reading:
            self.clock.set_now(now, self.roster.walls_needed)

    @property
    def knows_wall(self) -> bool:
        """Whether enough voters have told their wall clocks since this node started."""
        return bool(self.roster.voters) and len(self.clock.walls) >= self.roster.walls_needed

    def hear_wall(self, peer: Peer, wall_ms: int) -> None:
        """Note a peer's wall clock."""
        peer.wall_ahead_ms = wall_ms - int(self.clock.now.seconds * 1000)
        self._hear_walls()

    def _hear_walls(self) -> None:
        # Of voters alone: a node believes its wall clock by a majority of them.
        peers = self.roster.peers.items()
        self.clock.hear_walls(peer.wall_ahead_ms for node, peer in peers if self.roster.is_voter(node))

    def hear_clock(self, peer: str, clock: int) -> bool:
        """Move up to a clock that is only hearsay: no promise and no outcome rests on it; False if it is refused."""
        ahead = self.clock.ahead_ms(clock)
        # For people, whether it is followed or not: ``status`` names whose clock is ahead.
        known = self.roster.peers.get(peer)
        if known is not None:
            # Before a majority has told its walls, every clock is ahead of the known ones, and none counts as wrong.
            known.ahead_ms = ahead if self.clock.believed_ms else 0
        if ahead:
            return False
        self.clock.adjust(clock)
        return True

    def keep_ceiling(self) -> None:
        """Make a higher ceiling durable, in time, before a clock above the old one can leave this node."""
        if self.clock.value > self.clock.ceiling:
            # First in the step: the new ceiling must be durable before a clock above the old one leaves.
            self.outbox.emit_first(Keep("clock_ceiling", self.clock.raise_ceiling()))

    # -- members ---------------------------------------------------------------------------------------------------

    def set_membership(self, membership: Membership) -> None:
        """Count by a new membership from now on."""
        self.roster.set_membership(membership, self.clock.now.seconds)
        self._hear_walls()

    def check_joined(self) -> None:
        """Become an ordinary member as soon as everything is applied that the cluster had when it took us in."""
        if self.roster.has_joined(self.timelines.applied, self.clock.now.seconds):
            self._hear_walls()
            # Its file says from now on that it is a member like the others, also after a restart.
            self.outbox.emit(Keep("joining", 0))
            self.outbox.emit(SetMembers(self.roster.membership))

    def lose(self, reason: str) -> None:
        """Note, in the file itself, that it lacks some of this node's promises: it never votes again.

        The evidence may be gone later: the peer that remembers more may have left, or be newer than the loss.
        """
        if self.roster.lose(reason):
            self.outbox.emit(Keep("lost", reason))

    def give_up_fetching(self, reason: str) -> None:
        """Note, for people, why this node will never get the entries that it lacks."""
        self.stuck = reason

    @property
    def trouble(self) -> str:
        """Why this node takes no requests, for people; empty if it does."""
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
        """Note that another leader's transaction was in the way of one of ours."""
        # A node that no longer votes no longer leads: no request has to wait for its turn.
        if other is not None and other.leader in self.roster.voters:
            self.contests.note(object_of(key), other.leader, self.clock.now.seconds)

    def note_commit(self, seconds: float) -> None:
        """Note how many seconds after its BEGIN one of ours had its quorum."""
        # A commit that had to wait for a dead voter says nothing of the usual time: so it counts up to a bound.
        self.commit_s += WEIGHT * (min(seconds, COMMIT_S_MAX) - self.commit_s)

    # -- what is here ----------------------------------------------------------------------------------------------

    def has_seen(self, token: Token) -> bool:
        """Return whether this node has all that a session has seen, and the schema in force then."""
        if token.clock > self.clock.value and self.clock.is_absurd(token.clock):
            return False
        # Its session has seen the schema that follows; here it would find the old one.
        if self.schema.scheduled is not None and self.schema.is_behind(token.clock):
            return False
        # A label may have died with all its holders; then safe time tells that nothing up to the token is missing.
        return covers(self.timelines.applied, token.vector) or (token.clock > 0 and self.clock.safe >= token.clock)

    def read_clock(self) -> int:
        """Return the clock of a token for a read here and now: not before anything that is applied.

        Nor after the schema that was read: a session that was told a clock of the next one would count as having seen
        it, and would wait at this very node until it is in force. Everything applied before that has a smaller clock.
        """
        clock, scheduled = self.clock.read(), self.schema.scheduled
        return clock if scheduled is None else min(clock, scheduled.activates - 1)

    def happened(self, commands: Iterable[str], own: Txid | None = None) -> Conflict | None:
        """Return the transaction, not ``own``, that one of these commands has become already, in any base; or None.

        A base that has it does not make the second run right: the leader that executed the command again had looked for
        it before its snapshot.
        """
        for command in commands:
            key = command_key(command)
            # The window first: it has the entries that are taken and not applied yet, which the journal's tables lack.
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
        known = self.pieces.known
        return known if known is not None and known.body == body else decode_transaction(body)

    def outcome(self, txid: Txid) -> bool | None:
        """Return whether a transaction was committed; None if it is open or unknown; up to safe time, by memory alone.

        The journal tells of applied and settled ones: a node that was away for long takes more than it could remember.
        """
        # Memory first: a transaction that ended in this very step is not in the journal yet.
        found = self.votes.outcomes.get(txid)
        return True if found is None and self.is_in_journal(txid) else found

    def is_applied(self, txid: Txid) -> bool:
        """Return whether a transaction is known to be in the tables, under some place.

        Up to safe time, it may be there and the answer be no.
        """
        return txid in self.votes.done or self.is_in_journal(txid)

    def is_in_journal(self, txid: Txid) -> bool:
        """Return whether a transaction above safe time, and settled, was applied in an earlier step."""
        return self.clock.safe < txid.clock <= self.clock.settled and self._lookups.has_applied(txid)

    def is_in_base(self, txid: Txid, base: Vector) -> bool:
        """Return whether a base has a commit, under any of the places that the journal has for it."""
        retired = self.roster.membership.retired
        return any(leader in retired or base.get(leader, 0) >= tick for leader, tick in self._lookups.find_places(txid))

    def safe_of(self, base: Vector) -> int:
        """Return up to which clock a base has seen all commits: safe time now may be past commits that it lacks."""
        if covers(base, self.timelines.applied):
            return self.clock.safe
        lacking = self.commit_window.oldest_outside(base)
        return self.clock.safe if lacking is None else min(self.clock.safe, lacking - 1)

    def conflicts_outside(self, transaction: Transaction) -> bool | None:
        """Return whether a transaction conflicts with a commit outside its base; None if that cannot be told any more.

        Commits dropped from the conflict window are looked up in the journal: after a restart they may be many.
        """
        access_set, base, floor = transaction.access_set, transaction.base, self.commit_window.floor
        for found in self.commit_window.conflicts(access_set, base, transaction.txid):
            # The window knows only the places that have come since it remembers the commit; the journal knows all.
            if not self.is_in_base(found.other, base):
                return True
        lacking = {leader: tick for leader, tick in floor.items() if base.get(leader, 0) < tick}
        if not lacking:
            return False
        if sum(tick - base.get(leader, 0) for leader, tick in lacking.items()) > LOOKED_UP_MAX:
            return None  # no voter approves so old a transaction, and to read that much would block the node
        seen = {**base, **dict.fromkeys(self.roster.membership.retired, CLOCK_LIMIT)}  # no base names retired timelines
        return self._lookups.conflicts(access_set, seen, lacking)

    def why_rows_differ(self, transaction: Transaction) -> str | None:
        """Return why a transaction was not made of the rows that are here; empty if it was.

        None: its base is applied in this very step, so the tables do not have it yet; or it is so large that the driver
        compares it in parallel. The voter is asked again then.
        The base must be covered, and nothing outside it in conflict: then its rows are the same at every sound node.
        """
        if self._lookups.compare_rows is None:
            return ""
        if self.outbox.is_applying:
            # The tables get the entries of this step only after it: ask again then.
            self.timers.set(0, Timer.VOTES)
            return None
        why = self._lookups.compare_rows(transaction)
        if why:
            self.doubts += 1
            self.counts["rows_differ"] += 1
        return why

    def hold_journal(self, name: str, hold: tuple[int, int]) -> None:
        """Note, durably, from which clock on a reader needs the journal."""
        self.holds[name] = hold
        self.outbox.emit(KeepHold(name, *hold))

    # -- applying --------------------------------------------------------------------------------------------------

    def take(self, entry: Entry) -> None:
        """Take the next entry of its timeline: so a commit becomes known."""
        txid = entry.txid
        self.timelines.take(entry)
        # Each transaction that this node begins from now on has a later clock than all that it knows of.
        self.clock.adjust(txid.clock)
        since = self.votes.pending.since.get(txid)
        if since is not None:
            self._note_pending(entry, since)
        # Before its end is noted: was it committed at another place already? Then it is not pending.
        is_repeat = txid.clock <= self.clock.safe or (since is None and self.outcome(txid) is True)
        # Out of ``pending`` and into the commit window within one step: no conflict test falls between the two.
        self.votes.end(txid, commit=True)
        # Compared with nothing any more: a base that lacks anything so old is refused (V16).
        forgotten = moved(self.clock.settled, -self.settings.conflict_window_ms)
        # Our own are asked for by their ids, however old they are.
        is_late = txid.clock <= forgotten and txid.leader != self.me
        window, place = self.commit_window, entry.place
        if not ((is_late or is_repeat) and window.pass_over(place, txid, is_repeat=is_repeat)):
            window.add(place, entry.transaction)

    def _note_pending(self, entry: Entry, since: float) -> None:
        """Note how long a commit of another leader was pending here: a slow leader is asked about its own later."""
        peer = self.roster.peers.get(entry.leader)
        # An adopted transaction has waited for a dead leader.
        if peer is not None and entry.leader == entry.txid.leader:
            peer.pending_s += WEIGHT * (self.clock.now.seconds - since - peer.pending_s)

    def note_answer(self, seconds: float) -> None:
        """Note how long after its BEGIN a voter has approved one of ours."""
        self.answer_s += WEIGHT * (seconds - self.answer_s)

    @property
    def answer_pause_s(self) -> float:
        """After how many seconds a message of ours that has no answer is sent again for the first time."""
        return 2 * max(self.settings.suspicion_ms / 1000, self.answer_s)

    def apply(self, entry: Entry) -> None:
        """Count an entry as applied."""
        self.timelines.apply(entry.leader, entry.tick)
        self.votes.apply(entry.txid)
        self.progress = True

    def schedule(self, change: Transaction) -> None:
        """Wait for the activation of a schema change, which is applied."""
        self.schema.schedule(change)
        left_ms = milliseconds(change.activates) - milliseconds(self.clock.read())
        grace_ms = SCHEMA_GRACE_MS * (len(self.roster.voters) > 1)
        # A moment later than due, where there are other voters: a transaction begun before may still be on its way, and
        # would be TOO LATE.
        self.timers.set(max(0, left_ms) + grace_ms, Timer.SCHEMA_DUE, change.txid)

    def activate(self) -> None:
        """Put the scheduled schema change in force: everything with a smaller clock is applied, and nothing else."""
        self.outbox.emit(Activate(self.schema.activate().txid))
        self.progress = True  # requests and entries may have waited for it

    def take_progress(self) -> bool:
        """Return whether something was applied, or came into force, since the last call."""
        progress, self.progress = self.progress, False
        return progress
