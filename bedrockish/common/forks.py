"""Clients, pools and connections in a forked process: the inherited links and transactions stay with the parent.

A child has the parent's sockets, and two processes that read one socket would take each other's answers. So a forked
child closes its copies without sending anything to the nodes, and each client opens a new link at its next call. An
open transaction continues in the parent only.
"""

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """An object that a forked child inherits."""

    def after_fork(self) -> None:
        """Drop links, locks and open transactions, which belong to the parent. Called in the child's only thread."""


_KNOWN: "weakref.WeakSet[Inherited]" = weakref.WeakSet()


def watch_forks(known: Inherited) -> None:
    """Call the object's ``after_fork`` in each child that is forked from now on, as long as the object lives."""
    _KNOWN.add(known)


def _in_child() -> None:
    for known in list(_KNOWN):
        known.after_fork()


os.register_at_fork(after_in_child=_in_child)
