"""Clients, pools and connections in a process that was forked: what a child inherits stays its parent's.

A child has the parent's sockets, and two processes that read one socket take each other's answers. So a forked child
closes its copies without a word to the nodes, and each client opens a link of its own at its next call. A transaction
that is open goes on in the parent only.
"""

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """An object that a forked child inherits."""

    def after_fork(self) -> None:
        """Leave links, locks and open transactions to the parent; called in the child, which has one thread."""


_KNOWN: "weakref.WeakSet[Inherited]" = weakref.WeakSet()


def watch_forks(known: Inherited) -> None:
    """Have ``after_fork`` of an object called in each child that is forked from now on, while the object lives."""
    _KNOWN.add(known)


def _in_child() -> None:
    for known in list(_KNOWN):
        known.after_fork()


os.register_at_fork(after_in_child=_in_child)
