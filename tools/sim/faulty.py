"""Deliberate faults of the protocol: each takes one rule away, and the laws must notice.

A fault edits the source of one function while it is in force. The text that it replaces must be there exactly once, so
a fault that no longer fits the code says so, and does not pass for one that was looked for in vain.
"""

from typing import Any

from bedrockish import acquaintances
from bedrockish.core import (
    activation,
    answering,
    leading,
    membership,
    once,
    ordering,
    reading,
    recovery,
    rollback,
    safety,
    state,
    voting,
)
from tools.sim import disk, machine
from tools.sim.editing import Edit, Fault


def _fault(rule: str, *edits: tuple[Any, str, str, str], **options: object) -> Fault:
    return Fault(rule, tuple(Edit(*edit) for edit in edits), tuple(options.items()))


_State, _Leading, _Voting, _Recovery = state.State, leading.Leading, voting.Voting, recovery.Recovery
_Safety, _Ordering, _Reading, _Rollbacks = safety.Safety, ordering.Ordering, reading.Reading, rollback.Rollbacks
_NOW = "self.world.leave(self.name, peer, message, data); return\n    self.disk.then"
_HELD = "self.disk.then"
_SLOW_DISKS = {"sync_ms": 20.0, "delay_ms": 1.0, "faults": ("crash", "crash_all"), "fault_every_s": 0.1, "load_s": 3.0}
_DUELS = {"suspect_every_s": 0.004, "suspicion_ms": 200, "delay_ms": 5.0, "sync_ms": 0.5, "hot": 0.5, "load_s": 1.5}
_RESTARTS = {**_DUELS, "faults": ("crash", "reset"), "fault_every_s": 0.03, "voters": 3}
_ALTERS = {"alter": 0.2, "delay_ms": 5.0, "schema_delay_ms": 2, "load_s": 2.0, "voters": 3}
_TIGHT_TIME = {**_DUELS, "closing_lag_ms": 1, "heartbeat_ms": 5, "faults": ("pause", "crash", "one_way"), "voters": 3}

_POWER_CUTS = {
    **{**_RESTARTS, "faults": ("crash_some", "crash_all"), "fault_every_s": 0.1, "load_s": 2.0, "dead": 1},
    **{"suspicion_ms": 50, "heartbeat_ms": 50, "timeout_s": 2.0},
}
_ONE_WAY = {
    **{"voters": 3, "faults": ("one_way",), "fault_every_s": 0.05, "suspect_every_s": 0.004, "suspicion_ms": 1_000},
    **{"delay_ms": 1.0, "sync_ms": 0.2, "hot": 0.0, "keys": 12, "closing_lag_ms": 20, "heartbeat_ms": 20},
    **{"load_s": 2.0, "clients": 4, "timeout_s": 2.0, "ordered": True, "lose": 0.0, "duplicate": 0.0},
}
_LATE = {
    **{"voters": 3, "duplicate": 0.6, "ordered": False, "lose": 0.0, "delay_ms": 20.0, "sync_ms": 20.0, "hot": 0.9},
    **{"keys": 3, "clients": 10, "load_s": 2.0, "faults": ("crash_some", "pause_some"), "fault_every_s": 0.2},
    **{"suspect_every_s": 0.0, "suspicion_ms": 150, "timeout_s": 0.05, "closing_lag_ms": 3_000, "heartbeat_ms": 100},
    **{"conflict_window_ms": 60_000, "forwarding": False, "talks": 0.0, "readers": 0, "changes_every_s": 0.0},
}
_CHANGES = {"changes_every_s": 0.1, "load_s": 3.0, "voters": 3, "heartbeat_ms": 50, "delay_ms": 5.0, "dead": 0}
_RESTORED = {
    **{"faults": ("restore", "restore", "crash_all", "crash", "one_way"), "fault_every_s": 0.1, "voters": 3, "dead": 0},
    **{"load_s": 4.0, "clients": 10, "think_ms": 5.0, "sync_ms": 1.0, "delay_ms": 5.0, "heartbeat_ms": 50},
}
_TALKS = {"talks": 0.7, "voters": 3, "hot": 0.5, "delay_ms": 5.0, "load_s": 3.0}

FAULTS: dict[str, Fault] = {
    "quorum less one": _fault(
        "a commit needs q approvals", (_Leading, "_count", ">= self.state.quorum", ">= self.state.quorum - 1")
    ),
    "plain majority at 7": _fault(
        "q(7) is 5",
        (state, "approvals_needed", "max(majority(voters), (voters + failures) // 2)", "majority(voters)"),
        voters=7,
        dead=3,
    ),
    "reply before durable": _fault(
        "the client is answered when the commit is durable",
        (
            machine.Machine,
            "_reply_to",
            "self.disk.then(lambda: self.world.after(delay, lambda: boot == self.boot and answerer(answer)))",
            "self.world.after(delay, lambda: answerer(answer))",
        ),
        **_SLOW_DISKS,
        voters=1,
    ),
    "messages before durable": _fault(
        "nothing leaves before it is durable", (machine.Machine, "_send", _HELD, _NOW), **_SLOW_DISKS
    ),
    "BEGIN before durable": _fault(
        "BEGIN leaves when the leader's own approval is durable",
        (machine.Machine, "_send", _HELD, "if type(message).__name__ == 'Begin':\n        " + _NOW),
    ),
    "COMMIT before durable": _fault(
        "COMMIT leaves when the commit is durable",
        (machine.Machine, "_send", _HELD, "if type(message).__name__ == 'Commit':\n        " + _NOW),
    ),
    "no test 3": _fault(
        "a voter tests against commits outside the base",
        (voting, "prepare_commit", "next(recent.conflicts(footprint, base, own), None)", "None"),
    ),
    "no test 4": _fault(
        "a voter tests against what is pending",
        (voting, "prepare_commit", "return found or next(pending.conflicts(footprint, own), None)", "return found"),
    ),
    "no test 5": _fault(
        "a leader whose transaction was rolled back turns down older ones that conflict",
        (_Voting, "_vetoed", "if ended_at >= transaction.txid.clock:", "if False:"),
        **{**_DUELS, "voters": 5},
    ),
    "no test of its own": _fault(
        "a leader tests its own transaction",
        (
            _Leading,
            "_step_back",
            "found = next(state.recent.conflicts(footprint, prepared.base), None)",
            "return False",
        ),
        execute_ms=5.0,
    ),
    "base not covered": _fault(
        "a voter covers the base before it judges",
        (_Voting, "_consider", "if not covers(state.applied, transaction.base):", "if False:"),
    ),
    "too late is not": _fault(
        "nothing is approved at or below closed",
        (_Voting, "_untimely", "clock <= state.closed or clock <= state.floor", "False"),
    ),
    "window forgotten early": _fault(
        "the conflict window reaches back to every base",
        (_Safety, "_forget", "safe - pack(state.settings.conflict_window_ms)", "safe"),
        **{"heartbeat_ms": 20, "closing_lag_ms": 20, "suspicion_ms": 2_000, "timeout_s": 5.0, "hot": 0.5},
        **{"faults": ("partition", "reset"), "fault_every_s": 0.1, "conflict_window_ms": 60_000, "load_s": 2.0},
    ),
    "after ignored": _fault(
        "a commit is applied after its causes",
        (_Ordering, "settle", "covers(self.state.applied, queue[0].after)", "True"),
    ),
    "COMMIT ahead of a gap counts": _fault(
        "a COMMIT ahead of a gap is as if it had not come",
        (
            _Ordering,
            "on_commit",
            "self.want({leader: tick})\n",
            "self.want({leader: tick})\n        self.state.end(label.txid, commit=True)\n",
        ),
    ),
    "repeat rewrites rows": _fault(
        "a second label changes no data",
        (_Ordering, "_apply", "repeat = txid in state.done or txid.clock <= state.safe", "repeat = False"),
    ),
    "no command key": _fault(
        "two executions of one command conflict",
        (leading, "claim", '{b"c:\\0" + command.encode()}', "set()"),
        **{"sync_ms": 20.0, "delay_ms": 20.0, "timeout_s": 0.3, "load_s": 3.0},
    ),
    "rollbacks dropped": _fault(
        "BEGIN carries what its leader has given up",
        (_Leading, "_begin", "tuple(sorted(self.rollbacks.rolling))", "()"),
        **{**_DUELS, "voters": 5},
    ),
    "give up frees at once": _fault(
        "a transaction given up is pending until a majority accepted that",
        (_Rollbacks, "give_up", "state.persist(vote)\n", "state.persist(vote)\n    state.pending.remove(txid)\n"),
    ),
    "rolled back told early": _fault(
        "rolled back is told when a majority has accepted it", (_Rollbacks, "_count", ">= self.state.majority", ">= 1")
    ),
    "no tombstone": _fault(
        "a rollback of what was never seen is remembered",
        (
            _State,
            "accept_rollback",
            "    vote = self.vote(txid)\n",
            "    if txid not in self.votes: return True\n    vote = self.vote(txid)\n",
        ),
        **_LATE,
    ),
    "ballot 1 over a higher one": _fault(
        "a rollback is refused when a recovery has the promise",
        (_State, "accept_rollback", "if vote.promised > 1:", "if False:"),
        **_DUELS,
    ),
    "leader counts after its promise": _fault(
        "a leader that promised counts no more",
        (_Recovery, "on_recover", "self.leading.stop_counting(txid)", "pass"),
        **_DUELS,
    ),
    "exclusion ignores what is known": _fault(
        "a leader is not counted out when somebody knows its transaction's end",
        (_Recovery, "_possible_elsewhere", " and txid not in ended", ""),
        **{**_DUELS, "voters": 5},
    ),
    "accepted abort ends pending": _fault(
        "only a decided abort ends pending",
        (
            _Recovery,
            "on_accept",
            "    state.persist(vote)\n",
            "    if not message.commit:\n        vote.held = False\n        state.pending.remove(txid)\n"
            "    state.persist(vote)\n",
        ),
        **{**_DUELS, "voters": 5},
    ),
    "holds without tests": _fault(
        "who is asked to hold runs the tests",
        (
            _Recovery,
            "_stand",
            "never = next(",
            "state.hold(transaction)\n    return Standing.HELD, []\n    never = next(",
        ),
    ),
    "holds below its cut": _fault(
        "a node whose cut has passed a transaction says never",
        (_Recovery, "_stand", "or state.cut >= txid.clock", ""),
        **_ONE_WAY,
    ),
    "known outcome still accepts": _fault(
        "who knows the outcome answers with it",
        (_Recovery, "_tell", "return self.voting.tell_outcome(peer, txid)", "return False"),
    ),
    "decided by one": _fault(
        "a decision needs a majority", (_Recovery, "on_accepted", ">= self.state.majority", ">= 1"), **_DUELS
    ),
    "judged by one": _fault("R is a majority at least", (_Recovery, "on_promise", ">= self.state.majority", ">= 1")),
    "accepted values ignored": _fault(
        "a recovery takes up what was accepted", (_Recovery, "_judge", "if accepted is not None:", "if False:")
    ),
    "votes are volatile": _fault(
        "approvals are durable",
        (disk.Disk, "_keep", "self.durable.write(write)", "isinstance(write, Persist) or self.durable.write(write)"),
        **_RESTARTS,
    ),
    "promises are volatile": _fault(
        "promises and accepted decisions are durable",
        (disk, "copy_vote", "vote.held, vote.promised, vote.accepted", "vote.held, 0, None"),
        **_POWER_CUTS,
    ),
    "closed is the pending clock": _fault(
        "closed stays below what is pending",
        (_Safety, "advance", "closable = min(closable, lowest - 1)", "closable = min(closable, lowest)"),
        **_TIGHT_TIME,
    ),
    "cut ignores what is pending": _fault(
        "cut stays below what is pending", (_Safety, "advance", "cut = min(cut, lowest - 1)", "pass"), **_TIGHT_TIME
    ),
    "safe without cut": _fault(
        "safe rests on a second round",
        (_Safety, "advance", 'self._reached("cut")', 'self._reached("closed")'),
        **_TIGHT_TIME,
    ),
    "reports believed at once": _fault(
        "what a peer has closed counts once we applied what it had",
        (_Safety, "_cover", "covers(self.state.applied, known.report[0])", "True"),
    ),
    "no floor after a restart": _fault(
        "the clock's ceiling is durable",
        (disk.Image, "write", "self.meta[name] = value", "self.meta[name] = 0"),
        **_RESTARTS,
    ),
    "tokens are not looked at": _fault(
        "a session waits for what it has seen", (_State, "has_seen", "return covers", "return True or covers")
    ),
    "a read's token has the safe time": _fault(
        "a token's clock is above its vector",
        (answering.Answering, "_answer_read", ".clock, clock)", ".clock, self.state.safe)"),
        **{"wander": 1.0, "clients": 10, "heartbeat_ms": 20, "closing_lag_ms": 20, "delay_ms": 20.0, "hot": 0.9},
        **{"faults": ("slow_link",), "fault_every_s": 0.05, "talks": 0.0},
    ),
    "strict reads ask nobody": _fault(
        "a strict read asks a majority", (_Reading, "begin", "if len(read.clear) >= state.majority:", "if True:")
    ),
    "two voters at once": _fault(
        "one voter at a time comes or goes",
        (
            membership,
            "_promote",
            "members[member.node] = replace(member, voter=True)",
            "members.update({node: replace(one, voter=True) for node, one in members.items()})",
        ),
        **{**_CHANGES, "learners": 2},
    ),
    "a change conflicts with nothing": _fault(
        "a change of the members conflicts with everything",
        (leading, "claim", "(*footprint.write_ranges, EVERYTHING) if kind == MEMBERS else", ""),
        **_CHANGES,
    ),
    "a change may lose the quorum": _fault(
        "a change leaves voters enough that are alive",
        (membership, "_check_votes", "if len(alive) < needed and not change.force:", "if False:"),
        **{**_CHANGES, "faults": ("kill",), "fault_every_s": 0.5, "load_s": 9.0, "voters": 4, "think_ms": 100.0},
    ),
    "the old voters go on counting": _fault(
        "a node counts by the membership that it has applied",
        (_State, "set_peers", "self.voters = self", "self.voters = self.voters or self"),
        **_CHANGES,
    ),
    "who forgot is let in": _fault(
        "a voter that lost its file, or came back on an older one, is turned away",
        (acquaintances.Acquaintances, "judge", "if not code:", "if True:"),
        **{**_CHANGES, "faults": ("wipe", "restore", "crash"), "fault_every_s": 0.1},
    ),
    "an older file that has grown is let in": _fault(
        "a file that was put back is known by its starts, however much was written to it since",
        (acquaintances, "lacks", "if not starts or not seen.start:", "if True:"),
        **_RESTORED,
    ),
    "learners vote": _fault(
        "only voters lead and approve",
        (_State, "is_voter", "member is not None and member.voter and", "member is not None and"),
        **{**_DUELS, "learners": 2, "voters": 3, "wander": 1.0},
    ),
    "once is as often as one likes": _fault(
        "an interactive transaction is lost when what it read has changed",
        (once, "overtaken", "found = next(state.recent.conflicts(footprint, base), None)", "found = None"),
        **_TALKS,
    ),
    "settled and yet it happens": _fault(
        "the empty transaction that settles a command conflicts with it",
        (leading, "claim", '{b"c:\\0" + command.encode()}', "set()"),
        **{**_TALKS, "faults": ("one_way", "pause"), "fault_every_s": 0.05, "timeout_s": 0.3},
    ),
    "snapshot skips test 3": _fault(
        "at isolation snapshot, too, the first to commit a row wins",
        (
            _Voting,
            "_consider",
            "found = found or self._vetoed(transaction)",
            "found = None if transaction.isolation == 'snapshot' else found or self._vetoed(transaction)",
        ),
        (
            _Leading,
            "_step_back",
            "found = next(state.recent.conflicts(footprint, prepared.base), None)",
            "found = None if ticket.request.isolation == 'snapshot' else "
            "next(state.recent.conflicts(footprint, prepared.base), None)",
        ),
        **{"snapshots": 1.0, "execute_ms": 5.0, "delay_ms": 5.0, "hot": 0.9, "talks": 0.0},
    ),
    "clocks are not read": _fault(
        "a transaction conflicts with a schema change in force at its clock",
        (leading, "claim", "footprint.read_points | {clock_key(clock)}", "footprint.read_points"),
        **_ALTERS,
    ),
    "nobody waits for a schema change": _fault(
        "a transaction waits for the schema of its clock",
        (activation.Activation, "holds_up", "scheduled is None or", "True or"),
        **_ALTERS,
    ),
    "a schema change comes too soon": _fault(
        "a schema change is activated when nothing can appear before it any more",
        (_Safety, "advance", "state.awaits_schema(state.safe)", "state.awaits_schema(state.closed)"),
        **_ALTERS,
    ),
    "a session does not wait for a schema": _fault(
        "a session sees the schema changes that it was told of",
        (_State, "has_seen", "self.awaits_schema(token.clock)", "False"),
        **{**_ALTERS, "wander": 1.0, "clients": 10, "think_ms": 5.0, "faults": ("one_way", "slow_link", "slow_disk")},
        **{"fault_every_s": 0.1, "lose": 0.1, "heartbeat_ms": 50, "talks": 0.0, "dead": 0},
    ),
    "waiting goes on after a rollback": _fault(
        "who waits goes on when a rollback is accepted",
        (_State, "accept_rollback", "self.released.append(txid)", "pass"),
    ),
}
