"""What one node knows: the ground that all parts of the core stand on.

Only facts live here, and the few operations that keep them consistent with each other. What to do about the facts is
the business of the coordinator, the voter, recovery, the apply queue and safe time.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from bedrockish.api.requests import Token
from bedrockish.common.hlc import WALL_MS_MAX, HybridClock, milliseconds, moved
from bedrockish.common.levels import LEVEL
from bedrockish.core.protocol.effects import Activate, Apply, Effect, Forget, Keep, Persist, Send, SetMembers
from bedrockish.core.protocol.events import Now
from bedrockish.core.protocol.health import Health
from bedrockish.core.protocol.messages import SINCE, InPieces, Message
from bedrockish.core.protocol.pieces import Cut
from bedrockish.core.protocol.records import ENDED, Membership, Recovered, Vote
from bedrockish.core.state.access_index import AccessIndex
from bedrockish.core.state.certifier import EVERYTHING, CommitWindow, Conflict, OwnEnds, Pending, command_key
from bedrockish.core.state.closing_lag import ClosingLag
from bedrockish.core.state.contests import Contests
from bedrockish.core.state.peer import Peer
from bedrockish.core.state.pieces import MAY_BE_LARGE, Pieces
from bedrockish.core.state.settings import SCHEMA_GRACE_MS, Settings, approvals_needed, majority
from bedrockish_journal.model.footprint import Footprint, object_of
from bedrockish_journal.model.transaction import Transaction, Txid
from bedrockish_journal.model.vector import Vector, covers

ABSURD_MS = 366 * 86_400_000


class State:
    """The facts of one node.

    Invariants:
        ``applied <= taken`` in every component; an entry is taken in the order of its timeline.
        A txid in ``outcomes`` is not pending.
        ``cut <= closed``; neither goes back.
        At most one schema change is scheduled: nobody decides a second one before the first is in force at its leader.
    """

    def __init__(
        self,
        recovered: Recovered,
        settings: Settings,
        draw: Callable[[], float],
        now: Now,
        *,
        follows_wall: bool = True,
        find_command: Callable[[str], Txid | None] = lambda _: None,
    ) -> None:
        self.find_command = find_command
        self.me = recovered.node
        self.store = recovered.store
        self.batches = recovered.batches
        self.settings, self.draw = settings, draw
        self.now = now
        self.wall_ms = now.wall_ms
        self.membership: Membership = recovered.membership
        self.heard_level = 0  # the highest level of what was heard since the start
        self.joining = recovered.joining
        self.let_in = {self.me}  # who has spoken to this process, and so has taken its file for ours
        self.accused: dict[str, str] = {}  # peers that take our file for another one, and what they say
        self.lost = recovered.lost  # what our file lacks, for certain; it says so itself from then on
        self.clock = HybridClock(recovered.ceiling, follows_wall=follows_wall)
        self.ceiling = recovered.ceiling
        self.floor = recovered.ceiling
        self.applied: dict[str, int] = dict(recovered.applied)
        self.taken: dict[str, int] = dict(recovered.applied)
        self.heads: dict[str, bytes] = dict(recovered.heads)
        self.retirement: Vector = self._without_retired(self.applied)  # who covers this has all that is retired
        self.votes: dict[Txid, Vote] = {}
        self.pieces = Pieces(settings, dict(recovered.pieces), dict(recovered.named))
        self.pending = Pending()
        self.commit_window = CommitWindow()
        self.outcomes: dict[Txid, bool] = {}
        self.done: set[Txid] = set()  # applied, under some place; above safe
        self.own_ends = OwnEnds()
        self.aborting: AccessIndex[Txid] = AccessIndex()  # of which a rollback was accepted, or decided, here
        self.closed = recovered.cut
        self.cut = recovered.cut
        self.safe = recovered.safe
        self.schema = recovered.schema  # version in force here
        self.scheduled: Transaction | None = None  # the schema change that is applied and not yet in force
        self.peers: dict[str, Peer] = {}
        self.voters: list[str] = []
        self._reading: Now | None = None
        self._walls: list[int] = []  # the other voters' wall clocks, less our monotonic one
        self.believed_ms = 0  # what most voters' wall clocks say; 0 before that is known
        self.closing_lag = ClosingLag(settings)
        self.counted = not follows_wall  # whether the clock has only counted, ever since the start
        self.removed: dict[str, int] = dict(recovered.removed)
        self.holds: dict[str, tuple[int, int]] = dict(recovered.holds)
        self.health = Health(recovered.alarms)
        self.compare_rows: Callable[[Transaction], str | None] | None = None
        self.comparing: dict[Txid, float] = {}  # BEGINs that came in time, and until when that holds
        self.doubts = 0  # how often rows here, and those that somebody else made a transaction of, were not the same
        self.blocked = recovered.blocked  # decided, and fit nowhere: not applied before an operator has decided
        self.stuck = ""  # why this node cannot get what it lacks
        self.effects: list[Effect] = []
        self.counts: Counter[str] = Counter()  # what happened, for people who watch
        self.contests = Contests()
        self.ended: list[Txid] = []  # whose outcome became known in this step
        self.released: list[Txid] = []  # no longer pending in this step, because their rollback was accepted
        self.progress = False  # something was applied in this step
        self.late = False  # something at or below safe time was noted nevertheless: it can be forgotten at once
        self._timers: list[tuple[float, int, str, object]] = []
        self._timer_count = 0
        self.set_peers()
        self._recover(recovered)

    def note_rival(self, key: bytes, other: Txid | None) -> None:
        """Another leader's transaction was in the way of one of ours."""
        if other is not None and other.leader in self.voters:
            self.contests.note(object_of(key), other.leader, self.now.seconds)

    def _recover(self, recovered: Recovered) -> None:
        self.commit_window.retire(self.membership.retired.keys())
        for entry in recovered.window:
            self.commit_window.add(entry.place, entry.transaction)
            if entry.txid.clock > self.safe:
                self.done.add(entry.txid)
                self.outcomes[entry.txid] = True
            self.commit_window.pack(self.safe, ())
        self.commit_window.reaches_back_to(recovered.applied, (entry.place for entry in recovered.window))
        for vote in recovered.votes:
            if self.outcomes.get(vote.txid) or vote.txid.clock <= self.safe:
                self.effects.append(Forget(vote.txid))
                continue
            self.votes[vote.txid] = vote
            self._note_abort(vote)
            if vote.accepted is not None and vote.accepted == (ENDED, False):
                self.outcomes[vote.txid] = False
            elif vote.held and vote.transaction is not None:
                self.pending.add(vote.transaction, self.now.seconds)
        # A file that was filled from another node's copy has the greater cut of the two, and this node's own votes.
        # What it holds it would hold for a recovery, too: it may not say that nothing there can commit any more.
        lowest = self.pending.smallest_clock()
        if lowest is not None and lowest <= self.cut:
            self.cut = self.closed = lowest - 1
        if recovered.scheduled is not None:
            self.schedule(recovered.scheduled)

    # -- timelines that are retired --------------------------------------------------------------------------------

    def _without_retired(self, vector: Vector) -> dict[str, int]:
        retired = self.membership.retired
        return {leader: tick for leader, tick in vector.items() if leader not in retired}

    def in_short(self, vector: Vector) -> dict[str, int]:
        """Return a vector as it is said: what has the retirement of a timeline in its past has all of that timeline."""
        if self.membership.retired and covers(vector, self.retirement):
            return self._without_retired(vector)
        return dict(vector)

    def in_full(self, vector: Vector, config: int) -> Vector:
        """Return what a member that counts by a version of the membership has said in short."""
        retired = self.membership.retired
        if not retired:
            return vector
        unsaid = {
            leader: self.applied[leader]
            for leader, since in retired.items()
            if since <= config and leader in self.applied
        }
        return {**unsaid, **vector}

    def whole_timelines(self) -> set[str]:
        """Return the timelines of nodes that left, which every member has told to have up to the same tick.

        Each has told that it counts by our membership, so its link to who left is gone, and all that the timeline has
        is applied: what could be had from another member, it would have told of. So none of them ever grows again.
        """
        members = [self.peers.get(node) for node in self.membership.nodes if node != self.me]
        if self.me not in self.membership.members:
            return set()
        if any(peer is None or peer.config != self.membership.version for peer in members):
            return set()
        return {
            leader
            for leader, tick in self.applied.items()
            if leader not in self.membership.members
            and self.taken[leader] == tick
            and all(peer is not None and peer.applied.get(leader, 0) == tick for peer in members)
        }

    # -- members ---------------------------------------------------------------------------------------------------

    def set_peers(self) -> None:
        """Keep a record of every other member, and of nobody else."""
        others = [node for node in self.links().nodes if node != self.me]
        self.peers = {node: self.peers.get(node, Peer(heard=self.now.seconds)) for node in others}
        self.voters = self.membership.voters
        self._hear_walls()

    def links(self) -> Membership:
        """Return whom to keep links to: the members, and until a new node has caught up, those that took it in."""
        if self.joining is None:
            return self.membership
        told = self.joining.membership
        return replace(told, members={**self.membership.members, **told.members})

    @property
    def level(self) -> int:
        """The release level of the cluster: what is new since then is neither said nor done yet.

        Who says something of a higher level has applied the change that raises it, so everybody reads it; that change
        may not be here yet, and the answer is to be of that level too.
        """
        return max(self.membership.level, self.heard_level)

    @property
    def level_of_all(self) -> int:
        """The level that every member has told; ``UNKNOWN`` while one has told none."""
        return min([LEVEL, *(peer.level for peer in self.peers.values())])

    def check_joined(self) -> None:
        """Become an ordinary member as soon as everything is applied that the cluster had when it took us in."""
        told = self.joining
        if told is None or self.membership.version < told.membership.version:
            return
        if covers(self.applied, told.vector):
            self.joining = None
            self.set_peers()
            self.effects += [Keep("joining", 0), SetMembers(self.membership)]

    @property
    def barred(self) -> str:
        """Why this node neither votes nor leads: it has forgotten what it promised; empty if it may."""
        return self.lost or next(iter(self.accused.values()), "")

    @property
    def claims_time(self) -> bool:
        """Whether what this node has closed and cut counts: not before a majority of the voters has let it in.

        A voter whose file was put back does not know it before somebody tells. Whoever remembers more of the file turns
        it away, and says nothing to it.
        """
        return not self.barred and len(self.let_in.intersection(self.voters)) >= self.majority

    def lose(self, reason: str) -> None:
        """Note, in the file itself, that it lacks something of what this node has promised: it never votes again.

        What tells it now may not tell it later: who remembers more may be gone, or newer than the loss.
        """
        if not self.lost:
            self.lost = reason
            self.emit(Keep("lost", reason))

    @property
    def trouble(self) -> str:
        """Why this node takes no requests, for people; empty if it does."""
        if self.barred:
            return self.barred
        if not self.health.reads:
            return self.health.reason
        if self.stuck:
            return self.stuck
        if self.joining is not None:
            return f"node {self.me} is new and still catching up; ask {', '.join(self.joining.membership.voters)}"
        if self.me not in self.membership.members:
            return (
                f"node {self.me} is no longer a member of the cluster; ask {', '.join(self.voters)}, and stop this node"
            )
        return ""

    def is_voter(self, node: str) -> bool:
        """Whether a node is a voter now, and may vote if it is this one."""
        member = self.membership.members.get(node)
        if node == self.me and (self.barred or not self.health.writes):
            return False
        return member is not None and member.voter

    @property
    def is_applying(self) -> bool:
        """Whether something is applied in this very step: the tables do not have it yet."""
        return any(isinstance(effect, Apply | Activate) for effect in self.effects)

    def misfit(self, transaction: Transaction) -> str | None:
        """Return why a transaction was not made of the rows that are here; empty if it was.

        None: what it rests on is applied in this very step, so the tables do not have it yet; or it is so large that
        the driver compares it meanwhile. The voter is asked again then.
        The base must be covered, and nothing outside it in conflict: then its rows are the same at every sound node.
        """
        if self.compare_rows is None:
            return ""
        if self.is_applying:
            self.timer(0, "votes")
            return None
        why = self.compare_rows(transaction)
        if why:
            self.doubts += 1
            self.counts["rows_differ"] += 1
        return why

    @property
    def certifies_reads(self) -> bool:
        """Whether our word counts for a strict read: as a voter's does, also while we only read ourselves.

        What we have approved is among what we know, and while we approve nothing, nothing rests on us.
        """
        member = self.membership.members.get(self.me)
        return member is not None and member.voter and not self.barred and self.health.reads

    @property
    def quorum(self) -> int:
        """How many approvals a commit needs."""
        return approvals_needed(len(self.voters))

    @property
    def majority(self) -> int:
        """How many voters a promise, an acceptance or a closed time needs."""
        return majority(len(self.voters))

    def has_seen(self, token: Token) -> bool:
        """Whether this node has all that a session has seen, and the schema in force then."""
        if self.awaits_schema(token.clock):
            return False
        # A label may have died with all its holders; then safe time tells that nothing up to the token is missing.
        return covers(self.applied, token.vector) or (token.clock > 0 and self.safe >= token.clock)

    # -- the schema ------------------------------------------------------------------------------------------------

    def awaits_schema(self, clock: int) -> bool:
        """Whether what has this clock belongs on a schema that is not in force here yet."""
        return self.scheduled is not None and self.scheduled.activates <= clock

    def schedule(self, transaction: Transaction) -> None:
        """A schema change is applied: from now on wait for its activation."""
        assert self.scheduled is None, f"{self.scheduled} is not in force yet"
        self.scheduled = transaction
        left_ms = milliseconds(transaction.activates) - milliseconds(self.clock.read(self.now.wall_ms))
        self.timer(max(0, left_ms) + SCHEMA_GRACE_MS * (len(self.voters) > 1), "schema_due", transaction.txid)

    def activate(self) -> None:
        """Put the scheduled schema change in force: everything with a smaller clock is applied, and nothing else."""
        assert self.scheduled is not None
        self.emit(Activate(self.scheduled.txid))
        self.scheduled = None
        self.schema += 1
        self.progress = True  # there are those that waited for it

    # -- speaking --------------------------------------------------------------------------------------------------

    def emit(self, effect: Effect) -> None:
        """Ask the driver for something."""
        self.effects.append(effect)

    def send(self, peer: str, message: Message) -> None:
        """Say something to one peer."""
        kind = message.__class__
        assert kind not in SINCE or SINCE[kind] <= self.level, f"level {self.level} does not read {kind.__name__}"
        self.effects.append(Send(peer, self.to_send(peer, message)))

    def to_send(self, peer: str, message: Message, cut: Cut | None = None) -> Message:
        """Return what to send for a message: itself, or its parts if it is large; ``cut``: of ``cut_ahead``."""
        if self._is_cut(message):
            return self.pieces.to_send(peer, message, self.now.seconds, cut)
        return message

    def cut_ahead(self, message: Message) -> Cut | None:
        """Return how a message is cut if it is sent in parts; may be called in another thread, before ``to_send``."""
        return self.pieces.cut(message) if self._is_cut(message) else None

    def _is_cut(self, message: Message) -> bool:
        return message.__class__ in MAY_BE_LARGE and self.pieces.is_large(message) and self.takes_pieces

    @property
    def takes_pieces(self) -> bool:
        """Whether every member reads messages in pieces."""
        return self.level >= SINCE[InPieces]

    def send_voters(self, message: Message) -> None:
        """Say something to every other voter."""
        for node in self.voters:
            if node != self.me:
                self.send(node, message)

    def voters_up(self) -> list[str]:
        """Return the other voters that can be reached."""
        return [node for node in self.voters if node in self.peers and self.peers[node].up]

    def send_all(self, message: Message) -> None:
        """Say something to every other member."""
        for node in self.peers:
            self.send(node, message)

    # -- the wall --------------------------------------------------------------------------------------------------

    def set_now(self, now: Now) -> None:
        """Take a reading of the driver's clocks, and believe of the wall what most voters would believe.

        The cluster's clock never goes back, so one wall clock that is hours ahead, for a moment, would put it hours
        ahead for good. So a node follows its wall no further than ``clock_offset_ms`` ahead of the middle one of those
        that it knows, and not at all before it has heard from a majority.
        """
        if now is self._reading:
            return  # several events of one turn share a reading
        self._reading = now
        self.wall_ms = self.believed_ms = now.wall_ms
        if self.voters and self.voters != [self.me]:  # a learner asks the only voter, too
            if not self.knows_wall:
                self.believed_ms, now = 0, Now(now.seconds, 0)
            else:
                seconds_ms = int(now.seconds * 1000)
                known = sorted([*self._walls, now.wall_ms - seconds_ms])
                self.believed_ms = max(0, known[(len(known) - 1) // 2] + seconds_ms)
                most = self.believed_ms + self.settings.clock_offset_ms
                now = Now(now.seconds, max(0, min(now.wall_ms, most)))
        self.now = now
        if now.wall_ms > WALL_MS_MAX:
            self.set_clock(follows_wall=False)

    @property
    def knows_wall(self) -> bool:
        """Whether enough voters have told what their wall clocks say, since this node started."""
        return self.voters == [self.me] or len(self._walls) + self.is_voter(self.me) >= self.majority

    def hear_wall(self, peer: Peer, wall_ms: int) -> None:
        """Note what a peer's wall clock says."""
        peer.wall_ahead_ms = wall_ms - int(self.now.seconds * 1000)
        self._hear_walls()

    def _hear_walls(self) -> None:
        told = [peer.wall_ahead_ms for node, peer in self.peers.items() if self.is_voter(node)]
        self._walls = [ahead for ahead in told if ahead is not None]

    def ahead_ms(self, clock: int) -> int:
        """Return how far a clock is ahead of ours and of most voters' wall clocks, if further than allowed; else 0."""
        if not self.clock.follows_wall:
            return 0
        ahead = milliseconds(clock) - max(self.believed_ms, milliseconds(self.clock.value))
        return ahead if ahead > self.settings.clock_offset_ms else 0

    def is_absurd(self, clock: int) -> bool:
        """Whether a clock is so far ahead that it is an error, whatever rests on it.

        No node follows a wall clock, or hearsay, that far. Believed, it would be the end of following the wall for all.
        """
        if not self.clock.follows_wall or not self.believed_ms:
            return False
        return milliseconds(clock) - max(self.believed_ms, milliseconds(self.clock.value)) > ABSURD_MS

    def hear_clock(self, peer: str, clock: int) -> bool:
        """Move up to a clock that is only hearsay: no promise and no outcome rests on it; False if it is refused."""
        ahead = self.ahead_ms(clock)
        known = self.peers.get(peer)
        if known is not None:
            known.ahead_ms = ahead
        if ahead:
            return False
        self.clock.adjust(clock)
        return True

    def set_clock(self, *, follows_wall: bool) -> None:
        """Let the clock follow the wall from now on, or only count."""
        self.clock.follows_wall = follows_wall
        self.counted = self.counted or not follows_wall

    # -- time ------------------------------------------------------------------------------------------------------

    def timer(self, after_ms: float, name: str, subject: object = None) -> None:
        """Have ``name`` called with ``subject`` after a while."""
        self._timer_count += 1
        heapq.heappush(self._timers, (self.now.seconds + after_ms / 1000, self._timer_count, name, subject))

    def due(self) -> list[tuple[str, object]]:
        """Take the timers that have come."""
        due = []
        while self._timers and self._timers[0][0] <= self.now.seconds:
            _, _, name, subject = heapq.heappop(self._timers)
            due.append((name, subject))
        return due

    def deadline(self) -> float | None:
        """Return the seconds at which the next timer comes."""
        return self._timers[0][0] if self._timers else None

    def tick(self) -> int:
        """Return a new clock value, above all this node has seen, closed or promised."""
        self.clock.adjust(self.closed)
        return self.clock.tick(self.now.wall_ms)

    def keep_ceiling(self) -> None:
        """Make a higher ceiling durable, in time, before a clock above the old one can leave this node."""
        if self.clock.value > self.ceiling:
            self.ceiling = moved(self.clock.value, self.settings.clock_block_ms)
            self.effects.insert(0, Keep("clock_ceiling", self.ceiling))

    # -- votes and outcomes ----------------------------------------------------------------------------------------

    def vote(self, txid: Txid, transaction: Transaction | None = None) -> Vote:
        """Return the vote on a transaction; a new one if there is none."""
        vote = self.votes.get(txid)
        if vote is None:
            vote = self.votes[txid] = Vote(txid, transaction)
        elif vote.transaction is None:
            vote.transaction = transaction
        return vote

    def persist(self, vote: Vote) -> None:
        """Have a vote kept, after every change of it."""
        self.effects.append(Persist(vote, self.pieces.refer(vote)))
        self._note_abort(vote)

    def _note_abort(self, vote: Vote) -> None:
        if vote.txid in self.aborting:
            self.aborting.remove(vote.txid)
        if vote.accepted is not None and not vote.accepted[1]:
            # Where only its rollback was seen, it may conflict with anything.
            everything = Footprint(write_ranges=(EVERYTHING,))
            self.aborting.add(vote.txid, vote.transaction.footprint if vote.transaction is not None else everything)

    def drop_vote(self, txid: Txid) -> None:
        """Forget a vote, if there is one."""
        if self.votes.pop(txid, None) is not None:
            if txid in self.aborting:
                self.aborting.remove(txid)
            self.emit(Forget(txid))

    def happened(self, commands: Iterable[str], own: Txid | None = None) -> Conflict | None:
        """Return what one of these commands has become already, in whatever base that is; without ``own``.

        That it is in a base does not make it right: whoever executed it again has looked for it before its snapshot.
        """
        for command in commands:
            key = command_key(command)
            recent = next((txid for txid in self.commit_window.writers_of(key) if txid != own), None)
            found = recent or self.find_command(command)
            if found is not None and found != own:
                return Conflict(found, key)
        return None

    def hold(self, transaction: Transaction) -> Vote:
        """Make a transaction pending here, durably."""
        vote = self.vote(transaction.txid, transaction)
        vote.held = True
        if transaction.txid not in self.pending:
            self.pending.add(transaction, self.now.seconds)
        self.persist(vote)
        return vote

    def accept_rollback(self, txid: Txid) -> bool:
        """Accept a leader's rollback (ballot 1); False if a higher ballot is promised."""
        if txid in self.outcomes or txid.leader == self.me:
            return True  # it is over; or, ours, carried by a later one of ours: pending until a majority has accepted
        vote = self.vote(txid)
        if vote.promised > 1:
            return False
        vote.promised, vote.accepted, vote.held = 1, (1, False), False
        if txid in self.pending:
            self.pending.remove(txid)
            self.released.append(txid)
        self.persist(vote)
        return True

    def end(self, txid: Txid, *, commit: bool) -> None:
        """Learn the outcome of a transaction."""
        known = self.outcomes.get(txid)
        assert known is None or known == commit, f"{txid} has two outcomes"
        if known is not None:
            return
        self.outcomes[txid] = commit
        self.late = self.late or txid.clock <= self.safe
        self.pending.remove(txid)
        self.ended.append(txid)
        vote = self.votes.get(txid)
        if vote is None:
            return
        if not commit:
            if txid.leader == self.me and vote.transaction is not None:
                self.own_ends.add(vote.transaction, self.clock.read(self.now.wall_ms))
            vote.promised, vote.accepted, vote.held = ENDED, (ENDED, False), False
            self.persist(vote)
