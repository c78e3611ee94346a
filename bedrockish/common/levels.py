"""Release levels: how the members of a cluster agree on what they may say while some of them run an older release.

Every program has a level, ``LEVEL``; it is raised by one with each release that says something new. A node tells its
level in HELLO and in its gossip. The membership has the cluster's level: what every member is known to read. It is
raised by a transaction as soon as all members have told a higher one, and never goes back; from then on a program of a
lower level is refused. So during a rolling upgrade all members speak the language of the oldest one.
"""

LEVEL = 5
"""The level of this program."""

OLDEST = 5
"""The lowest level at which this program can be a member of a cluster: the level of release 0.2.0."""

UNKNOWN = 0
"""The level of a member that has not told one."""
