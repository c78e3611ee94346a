"""Release levels, by which the members of a cluster agree on a protocol while some of them run an older release.

Every program has a level, ``LEVEL``; a release with new kinds of messages or entries raises it by one. A node sends its
level in HELLO and in its gossip. The membership has the cluster's level, which every member is known to understand. As
soon as all members have reported a higher level, a transaction raises the cluster's level; it never falls, and from
then on a program of a lower level is refused. So during a rolling upgrade all members use the protocol of the oldest
member.
"""

LEVEL = 5
"""The level of this program."""

OLDEST = 5
"""The lowest level at which this program can be a member of a cluster: the level of release 0.2.0."""

UNKNOWN = 0
"""The level of a member that has not reported one."""
