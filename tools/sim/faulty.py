"""Deliberate faults of the protocol: each takes one rule away, and the laws must notice.

A fault edits the source of one function while it is in force. The text that it replaces must be there exactly once, so
a fault that no longer fits the code says so, and does not pass for one that was looked for in vain.
"""

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from bedrockish.core import activation, leading, ordering, reading, recovery, rollback, safety, state, voting
from tools.sim import disk, machine


@dataclass(frozen=True)
class Edit:
    """One change: in function ``name`` of a class or module, ``old`` becomes ``new``."""

    owner: type | ModuleType
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    """A rule taken away.

    Attributes:
        rule: what is left out, in words.
        options: what the worlds need to have for it to matter; the rest is drawn.
    """

    rule: str
    edits: tuple[Edit, ...]
    options: tuple[tuple[str, object], ...] = ()


@contextmanager
def in_force(fault: Fault) -> Iterator[None]:
    """Have a fault in the code for a while."""
    before: list[tuple[Any, str, object]] = []
    try:
        for edit in fault.edits:
            function = edit.owner.__dict__[edit.name]
            before.append((edit.owner, edit.name, function))
            setattr(edit.owner, edit.name, _edited(function, edit))
        yield
    finally:
        for owner, name, function in reversed(before):
            setattr(owner, name, function)


def _edited(function: FunctionType, edit: Edit) -> object:
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(edit.old) == 1, f"{edit.old!r} is {source.count(edit.old)} times in {edit.name}"
    found: dict[str, object] = {}
    exec(compile(source.replace(edit.old, edit.new), f"<fault in {edit.name}>", "exec"), function.__globals__, found)
    return found[edit.name]


def _fault(rule: str, *edits: tuple[Any, str, str, str], **options: object) -> Fault:
    return Fault(rule, tuple(Edit(*edit) for edit in edits), tuple(options.items()))


_State, _Leading, _Voting, _Recovery = state.State, leading.Leading, voting.Voting, recovery.Recovery
_Safety, _Ordering, _Reading, _Rollbacks = safety.Safety, ordering.Ordering, reading.Reading, rollback.Rollbacks
_NOW = "self.world.leave(self.name, peer, message, data); return\n    self.disk.then"
_HELD = "self.disk.then"
_SLOW_DISKS = {"sync_ms": 20.0, "delay_ms": 1.0, "faults": ("crash", "crash_all"), "fault_every_s": 0.1, "load_s": 3.0}
_DUELS = {"suspect_every_s": 0.004, "suspicion_ms": 200, "delay_ms": 5.0, "sync_ms": 0.5, "hot": 0.5, "load_s": 1.5}
_RESTARTS = {**_DUELS, "faults": ("crash", "reset"), "fault_every_s": 0.03, "voters": 3}
_CHANGES = {"alter": 0.2, "delay_ms": 5.0, "schema_delay_ms": 2, "load_s": 2.0, "voters": 3}
_TIGHT_TIME = {**_DUELS, "closing_lag_ms": 1, "heartbeat_ms": 5, "faults": ("pause", "crash", "one_way"), "voters": 3}

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
        (_Leading, "executed", "sorted(self.rollbacks.rolling)", "()"),
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
        **_DUELS,
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
        **_TIGHT_TIME,
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
        **_RESTARTS,
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
        (_Leading, "_answer_read", ".clock, clock)", ".clock, self.state.safe)"),
        follows_wall=False,
        voters=6,
        heartbeat_ms=20,
        closing_lag_ms=50,
        load_s=3.0,
    ),
    "strict reads ask nobody": _fault(
        "a strict read asks a majority", (_Reading, "begin", "if len(read.clear) >= state.majority:", "if True:")
    ),
    "clocks are not read": _fault(
        "a transaction conflicts with a schema change in force at its clock",
        (leading, "claim", "footprint.read_points | {clock_key(clock)}", "footprint.read_points"),
        **_CHANGES,
    ),
    "nobody waits for a schema change": _fault(
        "a transaction waits for the schema of its clock",
        (activation.Activation, "holds_up", "scheduled is None or", "True or"),
        **_CHANGES,
    ),
    "a schema change comes too soon": _fault(
        "a schema change is activated when nothing can appear before it any more",
        (_Safety, "advance", "state.awaits_schema(state.safe)", "state.awaits_schema(state.closed)"),
        **_CHANGES,
    ),
    "a session does not wait for a schema": _fault(
        "a session sees the schema changes that it was told of",
        (_State, "has_seen", "self.awaits_schema(token.clock)", "False"),
        **_CHANGES,
    ),
    "waiting goes on after a rollback": _fault(
        "who waits goes on when a rollback is accepted",
        (_State, "accept_rollback", "self.released.append(txid)", "pass"),
    ),
}
