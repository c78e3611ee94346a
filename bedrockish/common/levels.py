"""Release levels: how the members of a cluster agree on what they may say while some of them run an older release.

Every program has a level, ``LEVEL``; it is raised by one with each release that says something new. A node tells its
level in HELLO and in its gossip. The membership has the cluster's level: what every member is known to read. It is
raised by a transaction as soon as all members have told a higher one, and never goes back; from then on a program of a
lower level is refused. So during a rolling upgrade all members speak the language of the oldest one.
"""

LEVEL = 5
"""The level of this program. 1 is release 0.1.0, which tells none; from 3 on files may have packed journals."""

PACKS = 3
"""From which level of the cluster on a node packs old entries of its journal: no older program opens its file then."""

COLUMNS = 4
"""From which level of the cluster on reads say which columns of a row they need: all say which ones they change."""

DIGESTS = 5
"""From which level of the cluster on an entry keeps a digest of each command's request."""

VIRTUAL = 5
"""From which level of the cluster on a schema may have virtual tables: all members replicate their rows."""

ASKS_LIST = 5
"""From which level of the cluster on one ASK names several transactions."""

OLDEST = 1
"""The lowest level at which this program can be a member of a cluster."""

UNKNOWN = 0
"""The level of a member that has not told one."""
