"""Scopes that begin with a script up to a critical state, and are searched from there.

A fault that needs twenty events of five nodes in one order is too deep for a search from the start. So each scope has a
prefix, and held links, which leave out irrelevant messages. From the end of the prefix on, the search is
exhaustive; with all rules in place it finds no broken law. P, Q and R are transactions, A to E are nodes.
"""

from tools.modelcheck.scopes import ALONE, EARLY, MEET, SCOPES, TIMED, Limits, Scope, at

GUIDED: dict[str, Scope] = {
    # Q has seen P. C votes on Q without having P. So when A is dead, no running node could ever apply Q.
    "uncovered-3": Scope(
        "P commits, then Q of the same leader; a link breaks, the leader dies",
        3,
        (("A", "P", "x"), ("A", "Q", "x")),
        Limits(resets=1, deaths=1),
        where=at(deaths="A"),
        prefix=("A submits", "B hears A", "A hears B"),
        endings=10_000,
    ),
    # C and any holder of Q count out B, the leader of Q. If B's vote comes after all, A has a quorum and C an abort.
    "given-up-5": Scope(
        "two in conflict; B gives Q up while C recovers P from those that hold Q",
        5,
        MEET,
        Limits(suspicions=1),
        where=at(suspicions="C"),
        which=("P",),
        prefix=("A submits", "B submits", "C hears A", "D hears B", "E hears B", "A hears B", "B gives up Q"),
        held=("AD", "AE", "BC", "CB", "DA", "EA"),
    ),
    # B is free again and votes for P. D has heard that Q has ended; C and E have not.
    "known-end-5": Scope(
        "two in conflict, one after the other; D recovers P from those that still hold Q",
        5,
        MEET,
        Limits(suspicions=1),
        where=at(suspicions="D"),
        which=("P",),
        prefix=("B submits", "C hears B", "E hears B", "B gives up Q", "A hears B B", "D hears B B", "B hears A A D D"),
        held=("AC", "AE", "BC", "BE", "DB"),
    ),
    # A answers C's recovery, which relies on the answer, while a vote for P is still in transit.
    "promised-5": Scope(
        "two in conflict; C recovers P while D's vote for it is on its way",
        5,
        MEET,
        Limits(suspicions=1),
        where=at(suspicions="C"),
        which=("P",),
        prefix=("A submits", "B submits", "C hears A", "D hears A", "E hears B", "A hears C"),
        held=("AB", "AE", "BA", "BD", "DC", "EA"),
    ),
    # B has begun Q, which was not durable. B restarts without Q and votes for P, although D and E hold Q. A restarts
    # first, so that P has a later clock than the transactions that B refuses after its restart.
    "forgotten-5": Scope(
        "two in conflict; B restarts while C recovers P from those that hold Q",
        5,
        MEET,
        Limits(suspicions=1, restarts=1),
        where=at(suspicions="C", restarts="B"),
        which=("P",),
        lazy="B",
        settings=EARLY,
        prefix=("A restarts", "A submits", "C hears A A", "A hears C C"),
        held=("AD", "AE", "BC", "CA", "CB", "DA", "DB", "DE", "EA", "EB", "ED"),
    ),
    # As in forgotten-5, but with four voters Q is begun before B's vote is durable. C cannot judge without A or B.
    "forgotten-4": Scope(
        "two in conflict; B restarts without the writes that are not durable, while C recovers P",
        4,
        MEET,
        Limits(suspicions=1, restarts=1),
        where=at(suspicions="C", restarts="B"),
        which=("P",),
        lazy="B",
        settings=EARLY,
        prefix=("A restarts", "A submits", "C hears A A", "A hears C C"),
        held=("AD", "BC", "CB", "DA", "DB"),
    ),
    # A has committed P, which is not durable, and begins Q on it. A restarts without P, and R gets the tick of P.
    "lost-base-3": Scope(
        "P, then Q of the same leader on it, then R; A restarts without the writes that are not durable, B recovers Q",
        3,
        (("A", "P", "x"), ("A", "Q", "x"), ("A", "R", "y")),
        Limits(suspicions=1, restarts=1),
        where=at(suspicions="B", restarts="A"),
        which=("Q",),
        lazy="A",
        settings=EARLY,
        prefix=("A submits", "B hears A", "A hears B"),
        held=("AC", "CA"),
    ),
    # D has promised P to C, which relies on the promise. Then Q ends, and D has no other reason against P.
    "late-vote-5": Scope(
        "two in conflict; B gives Q up, and D hears of P late, while C recovers it",
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
        "two in conflict; B and C recover P, at different ballots",
        5,
        (("A", "P", "x"), ("E", "Q", "x")),
        Limits(suspicions=1),
        where=at(suspicions="B"),
        which=("P",),
        prefix=("A submits", "E submits", "B hears A", "C hears A", "D hears A", "A hears C", "C suspects P"),
        held=("AE", "BC", "BE", "CB", "CD", "DA", "EA", "EB", "ED"),
    ),
    # B and C have cut time past P without having heard of P. Then B restarts, and A asks whether B can hold P.
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
    # A has accepted B's abort of P at a ballot that B gives up. B and C do not know of A's acceptance, and try again.
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
    # C has accepted A's rollback, and A relies on it; B has not heard of the rollback. C restarts, and B recovers P.
    "partial-rollback-3": Scope(
        "one, given up; C accepts that, and restarts while B recovers it",
        3,
        ALONE,
        Limits(suspicions=1, restarts=1),
        where=at(suspicions="B", restarts="C"),
        prefix=("A submits", "B hears A", "C hears A", "A gives up P", "C hears A"),
    ),
    # Q waits at its leader B for the end of P, which A gives up.
    "released-3": Scope(
        "two in conflict; one waits for the other, which is given up",
        3,
        MEET,
        Limits(),
        prefix=("A submits", "B hears A", "B submits", "A gives up P"),
        endings=10_000,
    ),
}
ALL = {**SCOPES, **GUIDED}
