"""Scopes that are led to where rules meet, and gone through from there.

A breach that takes twenty events in one order, of five nodes, lies deeper than a search comes. The prefix of such a
scope is a script, and its held links leave out what has nothing to do with the matter; the rest is exhaustive as ever,
and the same scope breaks no law as long as all rules are there.
"""

from tools.modelcheck.scopes import MEET, SCOPES, Limits, Scope, at

GUIDED: dict[str, Scope] = {
    # Q has seen P. C votes on it without having P, so when A is gone, nobody alive could ever apply it.
    "uncovered-3": Scope(
        "P commits, then Q of the same leader; a link breaks, the leader dies",
        3,
        (("A", "P", "x"), ("A", "Q", "x")),
        Limits(resets=1, deaths=1),
        where=at(deaths="A"),
        prefix=("A submits", "B hears A", "A hears B"),
        endings=10_000,
    ),
    # C and whoever holds Q count B out, which leads Q. If B's vote comes after all, A has a quorum and C an abort.
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
}
ALL = {**SCOPES, **GUIDED}
