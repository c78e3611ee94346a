"""Scopes that are led to where rules meet, and gone through from there.

A breach that takes twenty events in one order, of five nodes, lies deeper than a search comes. The prefix of such a
scope is a script, and its held links leave out what has nothing to do with the matter; the rest is exhaustive as ever,
and the same scope breaks no law as long as all rules are there.
"""

from tools.modelcheck.scopes import ALONE, MEET, SCOPES, TIMED, Limits, Scope, at

GUIDED: dict[str, Scope] = {
    # Q has seen P. C votes on it without having P, so when A is gone, no living node could ever apply it.
    "uncovered-3": Scope(
        "P commits, then Q of the same leader; a link breaks, the leader dies",
        3,
        (("A", "P", "x"), ("A", "Q", "x")),
        Limits(resets=1, deaths=1),
        where=at(deaths="A"),
        prefix=("A submits", "B hears A", "A hears B"),
        endings=10_000,
    ),
    # C and any holder of Q count B out, which leads Q. If B's vote comes after all, A has a quorum and C an abort.
    "given-up-5": Scope(
        "two that meet; B gives Q up while C recovers P from those that hold Q",
        5,
        MEET,
        Limits(suspicions=1),
        where=at(suspicions="C"),
        which=("P",),
        prefix=("A submits", "B submits", "C hears A", "D hears B", "E hears B", "A hears B", "B gives up Q"),
        held=("AD", "AE", "BC", "CB", "DA", "EA"),
    ),
    # B is free again and votes for P; C and E have not heard that Q is over, D has.
    "known-end-5": Scope(
        "two that meet, one after the other; D recovers P from those that still hold Q",
        5,
        MEET,
        Limits(suspicions=1),
        where=at(suspicions="D"),
        which=("P",),
        prefix=(
            "B submits",
            "C hears B",
            "E hears B",
            "B gives up Q",
            "A hears B B",
            "D hears B B",
            "B hears A A D D",
        ),
        held=("AC", "AE", "BC", "BE", "DB"),
    ),
    # A answers C's recovery, which counts on it, while a vote for P is still on its way.
    "promised-5": Scope(
        "two that meet; C recovers P while D's vote for it is on its way",
        5,
        MEET,
        Limits(suspicions=1),
        where=at(suspicions="C"),
        which=("P",),
        prefix=("A submits", "B submits", "C hears A", "D hears A", "E hears B", "A hears C"),
        held=("AB", "AE", "BA", "BD", "DC", "EA"),
    ),
    # B has begun Q, and it was not durable: B comes back without it, and votes for P, though D and E hold Q.
    "forgotten-5": Scope(
        "two that meet; B restarts while C recovers P from those that hold Q",
        5,
        MEET,
        Limits(suspicions=1, restarts=1),
        where=at(suspicions="C", restarts="B"),
        which=("P",),
        lazy="B",
        prefix=("A submits", "C hears A", "A hears C"),
        held=("AD", "AE", "BC", "CA", "CB", "DA", "DB", "DE", "EA", "EB", "ED"),
    ),
    # D has promised P to C, which counts on it; then Q goes, and nothing of D's own stands in the way of P.
    "late-vote-5": Scope(
        "two that meet; B gives Q up, and D hears of P late, while C recovers it",
        5,
        MEET,
        Limits(suspicions=1),
        where=at(suspicions="C"),
        which=("P",),
        prefix=("A submits", "B submits", "C hears A", "D hears B", "E hears B", "A hears B C", "B gives up Q"),
        held=("AB", "AE", "BA", "BC", "CA", "CB", "EA"),
    ),
    # C asks A at a higher ballot, B at a lower one; E, which leads Q, answers only C.
    "two-ballots-5": Scope(
        "two that meet; B and C recover P, at different ballots",
        5,
        (("A", "P", "x"), ("E", "Q", "x")),
        Limits(suspicions=1),
        where=at(suspicions="B"),
        which=("P",),
        prefix=("A submits", "E submits", "B hears A", "C hears A", "D hears A", "A hears C", "C suspects P"),
        held=("AE", "BC", "BE", "CB", "CD", "DA", "EA", "EB", "ED"),
    ),
    # B and C have cut time past P, of which they have not heard. Then B restarts, and A asks whether B can hold P.
    "cut-3": Scope(
        "one; B and C cut past it, B restarts, A recovers its own",
        3,
        ALONE,
        Limits(suspicions=1, restarts=1, heartbeats=1),
        where=at(suspicions="A", restarts="B", heartbeats="C"),
        settings=TIMED,
        prefix=(
            *("A submits", "A meets B", "B hears A", "A meets C", "C hears A"),
            *("B reports", "C reports", "B hears C", "C hears B", "B reports", "C reports"),
        ),
        held=("AC",),
    ),
    # C has accepted B's commit of P, which A has given up. C restarts, and recovers P from A and from its own durable
    # state.
    "restarted-acceptor-3": Scope(
        "one, given up; B recovers it, C accepts its decision, restarts, and recovers it, too",
        3,
        ALONE,
        Limits(suspicions=1, restarts=1),
        where=at(suspicions="C", restarts="C"),
        prefix=(
            *("A submits", "B hears A", "C hears A", "A gives up P"),
            *("B suspects P", "C hears B", "B hears C", "C hears B"),
        ),
    ),
    # A has accepted B's abort of P at a ballot that B gives up; B and C, which know of none, try again.
    "two-recoverers-3": Scope(
        "one, given up; B and C recover it at several ballots, and A has accepted what B proposed first",
        3,
        ALONE,
        Limits(suspicions=2),
        where=at(suspicions="BC"),
        prefix=(
            *("A submits", "B hears A", "C hears A", "A gives up P", "B suspects P", "A hears B B"),
            *("C suspects P", "B hears C", "B hears A A", "A hears B"),
        ),
    ),
    # C has accepted A's rollback, and A counts on it; B has not heard of it. C restarts, and B recovers P.
    "partial-rollback-3": Scope(
        "one, given up; C accepts that, and restarts while B recovers it",
        3,
        ALONE,
        Limits(suspicions=1, restarts=1),
        where=at(suspicions="B", restarts="C"),
        prefix=("A submits", "B hears A", "C hears A", "A gives up P", "C hears A"),
    ),
}
ALL = {**SCOPES, **GUIDED}
