"""``judge`` compared with every reachable state: it never proposes the opposite of a possible decision.

The model knows nothing of ``judge``. Its steps are those of voters with one transaction X and its rivals, one node at a
time: approve, give up, accept an abort, learn an end, forget it, promise. In every state that can be reached, each
combination of the voters in reach is asked. If X is committed by its leader, or can still be, no answers may lead to an
abort. If X's abort is decided, or a rival outside its base is committed, no answers may lead to a commit.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from bedrockish.core.node import Node
from bedrockish.core.protocol.events import Now
from bedrockish.core.protocol.messages import Promise, Standing
from bedrockish.core.protocol.records import Recovered
from bedrockish.core.recovery import judge as judging
from bedrockish.core.recovery.judge import ABORT, COMMIT, EndFirst, Verdict, VoterAnswer, judge
from bedrockish.core.recovery.recovery import RecoveryRound
from bedrockish.core.state.settings import Settings, approvals_needed, majority, may_count_out
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.membership import Member, Membership
from bedrockish_journal.model.transaction import ROWS, Transaction, Txid
from tools.editing import fault, in_force

NAMES = "ABCDEFGHI"
NONE, HELD, ACCEPTED, DOOMED, ABORTED, COMMITTED = range(6)
PENDING = (HELD, DOOMED)  # DOOMED: held, and its abort accepted, which does not end it


@dataclass(frozen=True, slots=True, order=True)
class Rival:
    """The state of one rival at one voter.

    Attributes:
        state: the rival's state at the voter (``NONE`` to ``COMMITTED``).
        promised: whether the voter has promised the rival to a recovery, so that its leader's rollback is refused.
        late: the voter accepted the rival's abort, or learned its end, at a clock later than X.
        forgot: this voter has begun the rival as its leader, and has lost its vote in a crash.
    """

    state: int = NONE
    promised: bool = False
    late: bool = False
    forgot: bool = False

    @property
    def begun(self) -> bool:
        """Return whether the leader, which is this voter, has begun the rival."""
        return self.state != NONE or self.forgot

    @property
    def given_up(self) -> bool:
        """Return whether the leader has given the rival up; a leader that has forgotten the rival holds nothing."""
        return self.state in (DOOMED, ABORTED) or (self.forgot and self.state == ACCEPTED)


@dataclass(frozen=True, slots=True, order=True)
class Voter:
    """One voter. ``late``: its clock is later than X. ``answer``: (standing, accepted, blockers, ended, safe) if asked.

    ``safe`` is the clock up to which the voter has forgotten the ends of rivals.
    """

    rivals: tuple[Rival, ...]
    approved: bool = False
    gave_up: bool = False
    late: bool = False
    answer: tuple[int, bool, tuple[int, ...], tuple[int, ...], int] | None = None

    @property
    def holds(self) -> bool:
        """Say whether X is pending here."""
        return (self.approved and not self.gave_up) or (self.answer is not None and self.answer[0] == Standing.HELD)

    def set(self, rival: int, known: Rival) -> "Voter":
        """Return the voter with another state of a rival."""
        return replace(self, rivals=(*self.rivals[:rival], known, *self.rivals[rival + 1 :]))


World = tuple[Voter, ...]
MEMBERS = Membership(0, {name: Member(name, f"{name}:1") for name in NAMES[:5]})


class Model:
    """A cluster of ``voters`` in which voter 0 leads X and ``leaders`` say who leads each rival.

    Unless ``whole``, states after which X's leader cannot commit it any more are left out: there, no abort is wrong.
    With ``forgets``, the BEGINs of rivals leave before their leaders' votes are durable, which a crash may lose.
    """

    def __init__(
        self, voters: int, leaders: tuple[int, ...], *, whole: bool = True, forgets: bool | None = None
    ) -> None:
        self.leaders, self.quorum, self.majority = leaders, approvals_needed(voters), majority(voters)
        self.voters, self.whole = voters, whole
        self.forgets = not may_count_out(voters) if forgets is None else forgets

    def worlds(self) -> set[World]:
        """Return all reachable states."""
        start = self.same((Voter((Rival(),) * len(self.leaders)),) * self.voters)
        found, waiting = {start}, [start]
        while waiting:
            for world in self.after(waiting.pop()):
                if world not in found and (self.whole or not self.is_hopeless(world)):
                    found.add(world)
                    waiting.append(world)
        return found

    def is_hopeless(self, world: World) -> bool:
        """Return whether the leader of X can no longer commit X."""
        if world[0].answer is not None:
            return True
        return sum(v.approved or v.answer is None for v in world) < self.quorum

    def same(self, world: World) -> World:
        """Return the representative of all worlds that differ only by a permutation of voters without transactions."""
        special = {0, *self.leaders}
        others = iter(sorted((world[i] for i in range(self.voters) if i not in special), key=repr_of))
        return tuple(world[i] if i in special else next(others) for i in range(self.voters))

    def after(self, world: World) -> Iterator[World]:
        """Yield what one step of one node leads to."""
        for number, voter in enumerate(world):
            steps = itertools.chain(
                self.about_x(world, number, voter),
                *(self.about_rival(world, number, voter, rival) for rival in range(len(self.leaders))),
            )
            for changed in steps:
                if changed != voter:
                    yield self.same((*world[:number], changed, *world[number + 1 :]))

    # -- what a voter does with X --------------------------------------------------------------------------------------

    def about_x(self, world: World, number: int, voter: Voter) -> Iterator[Voter]:
        """Yield what BEGIN, ROLLBACK and RECOVER of X do to a voter."""
        begun, seen = world[0].approved, self.seen(world)
        if number == 0 and not begun:
            if self.may_lead(voter):
                yield replace(voter, approved=True, late=True)
            return
        if not begun or voter.answer is not None:
            return
        if number == 0 and not voter.gave_up and not self.leaders:
            yield replace(voter, gave_up=True)  # accept(abort) at ballot 1; pending until a majority has done so
        if number and world[0].gave_up:
            yield replace(voter, gave_up=True, late=True)
        covered = all(voter.rivals[rival].state == COMMITTED for rival in seen)
        if not covered:
            return  # a voter needs the base first
        told = self.takes_rollbacks(world, voter)
        if number and not voter.approved and not voter.gave_up and self.may_approve(told, number, seen):
            yield replace(told, approved=True, late=True)
        yield self.promises(told, number, seen, frozenset())
        forgotten = self.may_forget(world, told)
        if forgotten:
            yield self.promises(told, number, seen, forgotten)

    def may_forget(self, world: World, voter: Voter) -> frozenset[int]:
        """Return the rivals whose abort a voter may have forgotten: its safe time is past them.

        For that a majority's cuts are, so no more than a minority holds them still.
        """
        return frozenset(
            rival
            for rival, known in enumerate(voter.rivals)
            if known.state in (ACCEPTED, ABORTED)
            and sum(one.rivals[rival].state in (ACCEPTED, DOOMED, ABORTED) for one in world) >= self.majority
            and sum(one.rivals[rival].state not in PENDING for one in world) >= self.majority
        )

    def may_lead(self, voter: Voter) -> bool:
        """Return whether X's leader may begin X: its own given-up rivals do not block X, because its BEGIN carries
        their rollbacks.
        """
        return all(
            known.state not in PENDING or (self.leaders[rival] == 0 and known.state == DOOMED and not known.promised)
            for rival, known in enumerate(voter.rivals)
        )

    def seen(self, world: World) -> tuple[int, ...]:
        """Return the rivals in the base of X: those that its leader had applied when it began."""
        if not world[0].approved:
            return ()
        return tuple(rival for rival, known in enumerate(world[0].rivals) if known == Rival(COMMITTED, False, False))

    def takes_rollbacks(self, world: World, voter: Voter) -> Voter:
        """Accept what X's leader has given up before, unless it is promised to a recovery."""
        for rival, leader in enumerate(self.leaders):
            known = voter.rivals[rival]
            if leader == 0 and world[0].rivals[rival].state == DOOMED and known.state in (NONE, HELD):
                voter = voter if known.promised else voter.set(rival, Rival(ACCEPTED, False, voter.late))
        return voter

    def may_approve(self, voter: Voter, number: int, seen: tuple[int, ...]) -> bool:
        """Return whether tests 3, 4 and 5 let a voter approve a rival."""
        for rival, known in enumerate(voter.rivals):
            if known.state in PENDING or (known.state == COMMITTED and rival not in seen):
                return False
            if self.leaders[rival] == number and known.state == ABORTED and known.late:
                return False
        return True

    def promises(self, voter: Voter, number: int, seen: tuple[int, ...], forgotten: frozenset[int]) -> Voter:
        """Answer RECOVER."""
        rivals = list(enumerate(voter.rivals))
        blockers = tuple(rival for rival, known in rivals if known.state in PENDING)
        ended = tuple(rival for rival, known in rivals if known.state not in (NONE, HELD) and rival not in forgotten)
        if voter.holds or (number == 0 and voter.approved):
            standing, blockers = Standing.HELD, ()
        elif any(known.state == COMMITTED and rival not in seen for rival, known in enumerate(voter.rivals)):
            standing, blockers = Standing.NEVER, ()
        else:
            standing = Standing.BLOCKED if blockers else Standing.HELD
        safe = max((rival + 1 for rival in forgotten), default=0)
        return replace(voter, late=True, answer=(int(standing), voter.gave_up, blockers, ended, safe))

    # -- what a voter does with a rival --------------------------------------------------------------------------------

    def about_rival(self, world: World, number: int, voter: Voter, rival: int) -> Iterator[Voter]:
        """Yield the effects of a rival's messages on a voter."""
        known, leader = voter.rivals[rival], self.leaders[rival]
        accepted = [one for one in world if one.rivals[rival].state in (ACCEPTED, DOOMED, ABORTED)]
        is_committed = any(one.rivals[rival].state == COMMITTED for one in world)
        is_aborted = len(accepted) >= self.majority
        if known.state in (ABORTED, COMMITTED):
            return
        if leader == 0 and not known.promised:  # for others nothing depends on it
            yield voter.set(rival, replace(known, promised=True))
        if known.state == NONE and not known.promised and self.may_hold(world, number, voter, rival):
            yield voter.set(rival, replace(known, state=HELD))
        # A commit, or a promise to a recovery, leaves its node after the vote is durable.
        if self.forgets and number == leader and known.state == HELD and not (known.promised or is_committed):
            yield voter.set(rival, Rival(NONE, False, False, forgot=True))
        if world[leader].rivals[rival].begun and not is_committed:
            if known.state == HELD and number == leader and not known.promised:
                yield voter.set(rival, replace(known, state=DOOMED, late=voter.late))  # it gives up
            gave_up = world[leader].rivals[rival].given_up or (number == leader and known.forgot)
            if gave_up and not known.promised and known.state in (NONE, HELD):
                yield voter.set(rival, Rival(ACCEPTED, False, voter.late, known.forgot))
            if known.state in (NONE, HELD):  # at a higher ballot, which does not end it
                state = DOOMED if known.state == HELD else ACCEPTED
                yield voter.set(rival, Rival(state, leader == 0, voter.late, known.forgot))
            if is_aborted:
                # The learner hears the clocks of a majority that accepted it.
                early = sum(not one.rivals[rival].late for one in accepted)
                late = voter.late or early < self.majority
                yield replace(voter.set(rival, Rival(ABORTED, known.promised, late)), late=late)
        if is_committed or (not is_aborted and self.may_commit(world, rival)):
            # Committed after X began it cannot be in the base of X.
            unseen = number == 0 and voter.approved
            yield voter.set(rival, Rival(COMMITTED, False, unseen))

    def may_commit(self, world: World, rival: int) -> bool:
        """Return whether a rival can be committed now: by its leader, or by a recovery that its holders have promised
        it.
        """
        leader = self.leaders[rival]
        held = [one.rivals[rival] for one in world if one.rivals[rival].state == HELD]
        its = world[leader].rivals[rival]
        if its.state == HELD and not its.forgot and len(held) >= self.quorum:
            return True
        return sum(known.promised or leader != 0 for known in held) >= self.majority

    def may_hold(self, world: World, number: int, voter: Voter, rival: int) -> bool:
        """Return whether a voter may hold a rival: X or another rival may block it, or be committed and unseen."""
        leader = self.leaders[rival]
        begun = number == leader or world[leader].rivals[rival].begun
        # X's leader begins two transactions of its own one after the other; here X comes after the rival.
        order = number != 0 or leader != 0 or not voter.approved
        others = all(one.state in (NONE, ACCEPTED, ABORTED) for at, one in enumerate(voter.rivals) if at != rival)
        return begun and order and others and not voter.holds and not (voter.approved and not voter.gave_up)

    # -- what may have been decided ------------------------------------------------------------------------------------

    def may_be_committed(self, world: World) -> bool:
        """Return whether X's leader may have committed X, or may do so now."""
        leader = world[0]
        return leader.answer is None and not leader.gave_up and sum(one.approved for one in world) >= self.quorum

    def is_aborted(self, world: World) -> bool:
        """Return whether a majority has accepted the rollback of X."""
        return sum(one.gave_up for one in world) >= self.majority

    def unseen(self, world: World) -> bool:
        """Return whether a rival outside the base of X is committed."""
        seen = self.seen(world)
        return any(
            known.state == COMMITTED and rival not in seen for one in world for rival, known in enumerate(one.rivals)
        )

    def judged(self, world: World) -> Verdict | None:
        """Return the result of ``judge`` for the answers of all voters that were asked; None if they are too few.

        The model has no answers in transit. A voter whose answer has not arrived counts as not asked, so its state may
        still change.
        """
        if sum(voter.answer is not None for voter in world) < self.majority:
            return None
        rivals = [Txid(rival + 1, NAMES[leader]) for rival, leader in enumerate(self.leaders)]
        told = {}
        for number, voter in enumerate(world):
            if voter.answer is None:
                continue
            standing, gave_up, blockers, ended, safe = voter.answer
            told[NAMES[number]] = VoterAnswer(
                standing,
                (1, False) if gave_up else None,
                frozenset(rivals[rival] for rival in blockers),
                frozenset(rivals[rival] for rival in ended),
                safe,
            )
        return judge("A", told, NAMES[: self.voters], self.quorum)


def repr_of(voter: Voter) -> tuple[object, ...]:
    """Return something to sort voters by."""
    return (voter.rivals, voter.approved, voter.gave_up, voter.late, voter.answer or ())


def breaches(model: Model) -> Iterator[str]:
    """Yield the proposals of ``judge`` that contradict a possible decision."""
    for world in model.worlds():
        verdict = model.judged(world)
        if verdict == ABORT and model.may_be_committed(world):
            yield f"aborted, and its leader may commit it: {world}"
        if verdict == COMMIT and (model.is_aborted(world) or model.unseen(world)):
            yield f"committed against what is decided: {world}"


FAST = [*((voters, (), True) for voters in range(1, 6)), (3, (1,), False), (3, (0,), False), (4, (1,), False)]
SLOW = [(3, (1,), True), (4, (0,), False), (5, (1,), False)]


@pytest.mark.parametrize(("voters", "leaders", "whole"), FAST)
def test_judge_never_contradicts_a_decision_that_may_have_been_made(
    voters: int, leaders: tuple[int, ...], *, whole: bool
) -> None:
    """With no rival, with one of another leader, and with one of X's own leader that it has given up."""
    model = Model(voters, leaders, whole=whole)
    assert {model.judged(world) for world in model.worlds()} >= {None, COMMIT}
    assert next(breaches(model), None) is None


@pytest.mark.parametrize("holds_p", ["A", "AB", "AC", "BC", "ABC"])
def test_one_of_two_orphans_can_be_decided(holds_p: str) -> None:
    """D has led P, E has led Q, and both are dead: if the two waited for each other, all writes would stop."""
    p, q = (make_orphan(Txid(100, "D")), make_orphan(Txid(101, "E")))
    node = Node(Recovered("A", "s", MEMBERS), Settings(), lambda: 0.5, Now(0.0, 0), follows_wall=False)
    node.start(Now(0.0, 0))
    rounds = node.recovery.rounds
    for seconds in range(3):  # each is asked for again and again, and in turn
        for x, y, holders in ((p, q, holds_p), (q, p, set("ABC") - set(holds_p))):
            node.state.set_now(Now(float(seconds), 0))
            rounds[x.txid] = RecoveryRound(x, 2, seconds - 0.1)
            for name in "ABC":
                standing, blockers = (Standing.HELD, ()) if name in holders else (Standing.BLOCKED, (y.body,))
                node.recovery.on_promise(name, Promise(x.txid, 2, standing, None, blockers, (), 1, 50))
            if any(one.decision is not None for one in rounds.values()):
                return
    raise AssertionError("each waits for the other")


def make_orphan(txid: Txid) -> Transaction:
    sets = AccessSet(write_points=frozenset({b"t:x"}))
    return Transaction(txid, {}, 0, 0, 0, txid.leader, "serializable", ROWS, sets, b"", b"")


@pytest.mark.slow
@pytest.mark.parametrize(("voters", "leaders", "whole"), SLOW)
def test_nothing_is_proposed_against_a_possible_decision_in_larger_clusters(
    voters: int, leaders: tuple[int, ...], *, whole: bool
) -> None:
    """The larger clusters include the smallest ones in which an unreachable voter is counted out."""
    # With four voters, forgetting makes this search several times as long; with three it is searched, above.
    forgets = None if 0 not in leaders else False
    assert next(breaches(Model(voters, leaders, whole=whole, forgets=forgets)), None) is None


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["not if somebody knows the end", "not if somebody may have forgotten the end"])
def test_model_detects_wrongly_counted_out_voters(rule: str) -> None:
    """The case needs five voters: B, out of reach, had given up its own transaction and approved X."""
    with in_force(fault("", (judging, "judge", *RULES[rule]))):
        assert next(breaches(Model(5, (1,), whole=False)), None) is not None


@pytest.mark.slow
def test_five_voters_are_misled_by_a_leader_that_has_forgotten_its_own_begin() -> None:
    """B has begun a rival, lost its vote for it in a crash, and approved X: so with five voters BEGIN waits."""
    assert next(breaches(Model(5, (1,), whole=False, forgets=True)), None) is not None


@pytest.mark.parametrize("voters", range(1, 10))
def test_exclusion_of_j6_changes_a_verdict_only_with_five_voters_or_more(voters: int) -> None:
    """With fewer voters the verdict is the same without the exclusion, for answers that hold X or are blocked."""
    leader, others = NAMES[0], NAMES[1:voters]
    given = [VoterAnswer(Standing.HELD), BLOCKED_BY_Y, BLOCKED_BY_C, VoterAnswer(Standing.BLOCKED)]
    differs = False
    for count in range(majority(voters), voters):
        for told in itertools.combinations_with_replacement(given, count):
            answers = dict(zip(reversed(others), told, strict=False))
            verdict = judge(leader, answers, NAMES[:voters], approvals_needed(voters))
            with in_force(fault("", (judging, "judge", *RULES["a voter is counted out"]))):
                found = judging.judge(leader, answers, NAMES[:voters], approvals_needed(voters))
            differs = differs or found != verdict
    assert differs == may_count_out(voters)


# -- each clause ---------------------------------------------------------------------------------------------------

X, Y, OWN = Txid(5, "A"), Txid(4, "B"), Txid(3, "A")
HOLDS, NEVER_IS = VoterAnswer(Standing.HELD), VoterAnswer(Standing.NEVER)
BLOCKED_BY_Y = VoterAnswer(Standing.BLOCKED, None, frozenset({Y}))
BLOCKED_BY_C = VoterAnswer(Standing.BLOCKED, None, frozenset({Txid(4, "C")}))
BLOCKED_BY_OWN = VoterAnswer(Standing.BLOCKED, None, frozenset({OWN}))
HOLDS_KNOWS_Y = VoterAnswer(Standing.HELD, None, frozenset(), frozenset({Y}))
HOLDS_FORGOT_Y = VoterAnswer(Standing.HELD, safe=Y.clock)
HOLDS_FORGOT_OLDER = VoterAnswer(Standing.HELD, safe=Y.clock - 1)
TOOK = {(1, False): VoterAnswer(Standing.HELD, (1, False)), (3, True): VoterAnswer(Standing.BLOCKED, (3, True))}
CLAUSES: list[tuple[str, int, dict[str, VoterAnswer], Verdict]] = [
    ("an abort was accepted, and all hold it", 3, {"B": TOOK[1, False], "C": HOLDS}, ABORT),
    ("the highest ballot counts", 5, {"B": TOOK[1, False], "C": TOOK[3, True], "D": NEVER_IS}, COMMIT),
    ("all hold it", 3, {"B": HOLDS, "C": HOLDS}, COMMIT),
    ("a majority holds it, whatever others say", 3, {"A": NEVER_IS, "B": HOLDS, "C": HOLDS}, COMMIT),
    ("one holds it, its leader may have committed it", 3, {"B": HOLDS, "C": BLOCKED_BY_Y}, EndFirst(frozenset({Y}))),
    ("somebody says never", 3, {"B": HOLDS, "C": NEVER_IS}, ABORT),
    ("its leader answers without a commit", 3, {"A": HOLDS, "C": BLOCKED_BY_C}, ABORT),
    ("too few may have approved it", 4, {"B": BLOCKED_BY_Y, "C": HOLDS, "D": BLOCKED_BY_Y}, ABORT),
    ("just a quorum may have", 5, {"C": HOLDS, "D": HOLDS, "E": BLOCKED_BY_OWN}, EndFirst(frozenset({OWN}))),
    ("B is out of reach and holds its own", 5, {"C": HOLDS, "D": BLOCKED_BY_Y, "E": BLOCKED_BY_Y}, ABORT),
    (
        "B's own is known to be over, so B may have approved",
        5,
        {"C": HOLDS_KNOWS_Y, "D": BLOCKED_BY_Y, "E": BLOCKED_BY_Y},
        EndFirst(frozenset({Y})),
    ),
    (
        "C has forgotten all that is as old as B's own, so B may have approved",
        5,
        {"C": HOLDS_FORGOT_Y, "D": BLOCKED_BY_Y, "E": BLOCKED_BY_Y},
        EndFirst(frozenset({Y})),
    ),
    (
        "C has forgotten what is older than B's own",
        5,
        {"C": HOLDS_FORGOT_OLDER, "D": BLOCKED_BY_Y, "E": BLOCKED_BY_Y},
        ABORT,
    ),
    (
        "its leader has approved it, whatever else it leads",
        5,
        {"C": HOLDS, "D": BLOCKED_BY_OWN, "E": BLOCKED_BY_OWN},
        EndFirst(frozenset({OWN})),
    ),
]


@pytest.mark.parametrize(
    ("voters", "answers", "verdict"), [one[1:] for one in CLAUSES], ids=[one[0] for one in CLAUSES]
)
def test_judge_returns_the_verdict_of_each_clause(
    voters: int, answers: dict[str, VoterAnswer], verdict: Verdict
) -> None:
    """The cases are the rows of the table in docs/protocol.md."""
    assert judge("A", answers, NAMES[:voters], approvals_needed(voters)) == verdict


def clauses_hold() -> None:
    """Compare the whole table."""
    for _, voters, answers, verdict in CLAUSES:
        assert judge("A", answers, NAMES[:voters], approvals_needed(voters)) == verdict


def stuck(voters: int, quorum: int) -> bool:
    """Return whether two rivals with dead leaders can wait for each other for ever, with the most dead nodes."""
    gone = (voters - 1) // 2
    if gone < 2:
        return False  # one of the leaders is in reach, and reports that it has no commit
    alive = NAMES[gone:voters]
    for count in range(len(alive) + 1):
        mine = {node: VoterAnswer(Standing.HELD) for node in alive[:count]}
        mine |= {node: VoterAnswer(Standing.BLOCKED, None, frozenset({Y})) for node in alive[count:]}
        other = {node: VoterAnswer(Standing.BLOCKED, None, frozenset({X})) for node in alive[:count]}
        other |= {node: VoterAnswer(Standing.HELD) for node in alive[count:]}
        verdicts = [judge("A", mine, NAMES[:voters], quorum), judge("B", other, NAMES[:voters], quorum)]
        if all(isinstance(verdict, EndFirst) for verdict in verdicts):
            return True
    return False


def test_recoveries_of_two_orphans_never_wait_for_each_other() -> None:
    """The size of the quorum prevents it; seven voters with a plain majority show that it can happen otherwise."""
    assert not any(stuck(voters, approvals_needed(voters)) for voters in range(1, 10))
    assert [voters for voters in range(1, 10) if stuck(voters, majority(voters))] == [7, 9]


RULES = {
    "an accepted decision is taken up": ("if accepted:", "if False:"),
    "the highest ballot wins": ("max(accepted)", "min(accepted)"),
    "a majority has to hold it": (">= majority(len(voters)):", ">= majority(len(voters)) - 1:"),
    "what a majority holds is committed": ("if len(holders) >=", "if False and len(holders) >="),
    "never is never": (
        "if any(answer.standing == Standing.NEVER",
        "if False and any(answer.standing == Standing.NEVER",
    ),
    "its leader among them": ("if leader in answers:", "if False:"),
    "a voter is counted out": (" - bound)", ")"),
    "not if somebody knows the end": ("blockers - ended", "blockers"),
    "not if somebody may have forgotten the end": (" if blocker.clock > forgotten", ""),
    "what is as old as the forgotten is forgotten": ("blocker.clock > forgotten", "blocker.clock >= forgotten"),
    "not its own leader": (" - {leader}", ""),
    "less than a quorum": ("len(approvers) < quorum", "len(approvers) <= quorum"),
}


@pytest.mark.parametrize("name", RULES)
def test_each_clause_of_the_judge_is_needed_for_a_verdict(name: str) -> None:
    """The table above shows some missing clauses, and the model those that protect small clusters."""
    clauses_hold()
    with in_force(fault(name, (judging, "judge", *RULES[name]))), pytest.raises(AssertionError):
        clauses_hold()


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("an accepted decision is taken up", Model(3, ())),
        ("not its own leader", Model(3, (0,), whole=False)),
        ("less than a quorum", Model(3, (1,), whole=False)),
    ],
)
def test_model_detects_each_removed_clause(name: str, model: Model) -> None:
    """The model is independent of ``judge``."""
    with in_force(fault(name, (judging, "judge", *RULES[name]))):
        assert next(breaches(model), None) is not None
