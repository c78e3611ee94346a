"""Deliberate faults of the protocol: each removes one rule, and the laws must detect it.

A fault edits the source of functions while it is in force. The replaced text must occur exactly once, so that a fault
that no longer fits the code is an error, and does not look like an undetected fault.

This file has the rules of the agreement; ``faulty_uses`` has the rules on top of it.
"""

from bedrockish.core.coordinator import abort as rollback
from bedrockish.core.coordinator import attempts, coordinator
from bedrockish.core.protocol import effects
from bedrockish.core.recovery import judge, recovery
from bedrockish.core.replica import apply_queue, safe_time, times, voter
from bedrockish.core.state import pending, roster, state, votes
from tools.editing import Fault, caught_in, fault
from tools.faulty_uses import DUELS, USES
from tools.modelcheck import place
from tools.sim import disk, machine

_State, _Coordinator, _Voter, _Recovery = state.State, coordinator.Coordinator, voter.Voter, recovery.Recovery
_SafeTime, _ApplyQueue, _Rollbacks = safe_time.SafeTime, apply_queue.ApplyQueue, rollback.Rollbacks
_OwnEnds = pending.OwnEnds
_IS_EARLY = "early is not None and self.disk.has(early)"
_TOLD = "Tell(self.told, request.command, told(answer))()"
_LOWER = "message.ballot < vote.promised"
_OTHER_BALLOT = " or round_.ballot != message.ballot"
_SLOW_DISKS = {"sync_ms": 20.0, "delay_ms": 1.0, "faults": ("crash", "crash_all"), "fault_every_s": 0.1, "load_s": 3.0}
_RESTARTS = {**DUELS, "faults": ("crash", "reset"), "fault_every_s": 0.03, "voters": 3}
_TIGHT_TIME = {**DUELS, "closing_lag_ms": 1, "heartbeat_ms": 5, "faults": ("pause", "crash", "one_way"), "voters": 3}

_POWER_CUTS = {
    **{**_RESTARTS, "faults": ("crash_some", "crash_all"), "fault_every_s": 0.1, "load_s": 2.0, "dead": 1},
    **{"suspicion_ms": 50, "heartbeat_ms": 50, "timeout_s": 2.0},
}
_OVERTAKEN_BY_TIME = {
    **{"calm": True, "clients": 6, "wander": 0.0, "think_ms": 2.0, "delay_ms": 20.0, "sync_ms": 0.5, "hot": 0.0},
    **{"keys": 40, "timeout_s": 2.0, "load_s": 2.0, "heartbeat_ms": 5, "closing_lag_ms": 20, "ordered": False},
}
_ONE_WAY = {
    **{"calm": True, "faults": ("one_way",), "fault_every_s": 0.05, "suspect_every_s": 0.004, "delay_ms": 1.0},
    **{"sync_ms": 0.2, "hot": 0.0, "keys": 12, "closing_lag_ms": 20, "heartbeat_ms": 20, "load_s": 2.0},
    **{"timeout_s": 2.0},
}
_LATE = {
    **{"voters": 3, "duplicate": 0.6, "ordered": False, "lose": 0.0, "delay_ms": 20.0, "sync_ms": 20.0, "hot": 0.9},
    **{"keys": 3, "clients": 10, "load_s": 2.0, "faults": ("crash_some", "pause_some"), "fault_every_s": 0.2},
    **{"suspect_every_s": 0.0, "suspicion_ms": 150, "timeout_s": 0.05, "closing_lag_ms": 3_000, "heartbeat_ms": 100},
    **{"conflict_window_ms": 60_000, "talks": 0.0, "readers": 0, "changes_every_s": 0.0},
}

_AGREEMENT: dict[str, Fault] = {
    "quorum less one": caught_in(
        "meet-3",
        "a commit needs q approvals",
        (attempts.Attempts, "_count", ">= self.state.roster.quorum", ">= self.state.roster.quorum - 1"),
    ),
    "plain majority at 7": caught_in(
        "orphans-7",
        "q(7) is 5",
        (roster, "approvals_needed", "max(majority(voters), (voters + failures) // 2)", "majority(voters)"),
    ),
    "reply before durable": caught_in(
        "sync-3",
        "the leader answers its client when the commit is durable",
        (
            machine.Machine,
            "_reply_to",
            "self.disk.then(lambda: self.later(delay, lambda: answerer(answer)))",
            "self.later(delay, lambda: answerer(answer))",
        ),
        (place.Place, "_tell", "self.disk.then(Tell(self.told, request.command, told(answer)))", _TOLD),
        **_SLOW_DISKS,
        voters=1,
    ),
    "messages before durable": caught_in(
        "sync-3", "nothing leaves before it is durable", (place.Place, "_send", _IS_EARLY, "True")
    ),
    "BEGIN before its vote at five": caught_in(
        "forgotten-5",
        "with five voters, BEGIN leaves when the leader's own approval is durable",
        (attempts.Attempts, "_early", " or may_count_out(len(state.roster.voters))", ""),
        voters=5,
    ),
    "BEGIN before its ceiling": caught_in(
        "same-clock-3",
        "BEGIN leaves when a ceiling above its clock is durable",
        (effects.Early, "is_durable", "self.clock <= ceiling and ", ""),
        voters=3,
    ),
    "BEGIN before its base": caught_in(
        "lost-base-3",
        "BEGIN leaves when its leader's own commits in its base are durable",
        (effects.Early, "is_durable", " and self.tick <= tick", ""),
        voters=3,
    ),
    "COMMIT before durable": caught_in(
        "sync-3",
        "COMMIT leaves when the commit is durable",
        (
            machine.Machine,
            "_send",
            "self.disk.then",
            "if type(message).__name__ == 'Commit':\n        self.world.leave(self.name, peer, message, data); return\n"
            "    self.disk.then",
        ),
        (place.Place, "_send", _IS_EARLY, f"type(message).__name__ == 'Commit' or {_IS_EARLY}"),
    ),
    "no test 3": caught_in(
        "meet-3",
        "a voter tests against commits outside the base",
        (voter, "prepare_commit", "next(recent.conflicts(access_set, base, own), None)", "None"),
    ),
    "no test 4": caught_in(
        "meet-3",
        "a voter tests against pending transactions",
        (voter, "prepare_commit", "return found or next(pending.conflicts(access_set, own), None)", "return found"),
    ),
    "no test 5": caught_in(
        "given-up-5",
        "a leader whose transaction was rolled back rejects older ones that conflict",
        (_OwnEnds, "vetoes", "if self.latest < transaction.txid.clock:", "if True:"),
    ),
    "no test of its own": caught_in(
        "meet-3",
        "a leader tests its own transaction",
        (_Coordinator, "_certify", "found = next(state.commit_window.conflicts(", "return None\n    next(("),
    ),
    "base not covered": caught_in(
        "uncovered-3",
        "a voter covers the base before it judges",
        (_Voter, "_judge", "if not covers(state.timelines.applied, transaction.base):", "if False:"),
    ),
    "a BEGIN below closed time is approved": fault(
        "a voter approves no transaction at or below closed time",
        (_Voter, "_untimely", "clock <= state.clock.closed or clock <= state.clock.floor", "False"),
        **_OVERTAKEN_BY_TIME,
    ),
    "votes after its promise": caught_in(
        "late-vote-5",
        "a voter does not approve after its promise",
        (_Voter, "_judge", "if vote is not None and vote.promised > 0:", "if False:"),
    ),
    "after ignored": caught_in(
        "meet-3",
        "a commit is applied after its base",
        (_ApplyQueue, "apply_ready", "covers(self.state.timelines.applied, queue[0].after)", "True"),
    ),
    "COMMIT ahead of a gap counts": caught_in(
        "gap-3",
        "a COMMIT ahead of a gap is ignored",
        (
            _ApplyQueue,
            "on_commit",
            "self.want({leader: tick})\n",
            "self.want({leader: tick})\n        self.state.votes.end(label.txid, commit=True)\n",
        ),
    ),
    "repeat rewrites rows": caught_in(
        "recover-3",
        "a second label changes no data",
        (_ApplyQueue, "_apply", "txid.clock <= state.clock.safe or state.is_applied(txid)", "False"),
    ),
    "no command key": caught_in(
        "retry-elsewhere-3",
        "two executions of one command conflict",
        (coordinator, "claim", "map(command_key, commands)", "()"),
        (_State, "happened", "for command in commands:", "for command in ():"),
    ),
    "rollbacks dropped": caught_in(
        "again-3",
        "BEGIN carries the rollbacks of its leader",
        (_Coordinator, "_attempt", "if found.other in self.rollbacks", "if False"),
    ),
    "give up frees at once": fault(
        "a transaction stays pending until a majority has accepted its rollback",
        (_Rollbacks, "give_up", "1, (1, False)\n", "1, (1, False)\n    state.votes.pending.remove(txid)\n"),
    ),
    "a leader counts after it gave up": fault(
        "a leader that gives up stops counting",
        (attempts.Attempts, "give_up", "attempt.counting = False", "pass"),
        **DUELS,
    ),
    "rolled back told early": caught_in(
        "recover-rollback-3",
        "the client learns of the rollback when a majority has accepted it",
        (_Rollbacks, "_count", ">= self.state.roster.majority", ">= 1"),
    ),
    "no tombstone": fault(
        "a voter remembers the rollback of a transaction that it has not seen",
        (
            votes.Votes,
            "accept_rollback",
            "    vote = self.of(txid)\n",
            "    if txid not in self.by_txid: return True\n    vote = self.of(txid)\n",
        ),
        **_LATE,
    ),
    "ballot 1 over a higher one": caught_in(
        "recover-rollback-3",
        "a rollback is refused when a recovery has the promise",
        (votes.Votes, "accept_rollback", "if vote.promised > 1:", "if False:"),
    ),
    "leader counts after its promise": caught_in(
        "promised-5",
        "a leader stops counting at its promise",
        (_Recovery, "_promise", "self.coordinator.attempts.stop_counting(txid)", "pass"),
    ),
    "exclusion ignores what is known": caught_in(
        "known-end-5",
        "a recovery does not exclude a leader if a voter knows the end of its transaction",
        (judge, "judge", "blockers - ended", "blockers"),
    ),
    "accepted abort ends pending": fault(
        "only a decided abort ends pending",
        (
            _Recovery,
            "on_accept",
            "    self.state.votes.persist(vote)\n",
            "    if not message.commit:\n            vote.held = False\n"
            "            self.state.votes.pending.remove(vote.txid)\n        self.state.votes.persist(vote)\n",
        ),
        **{**DUELS, "voters": 5},
    ),
    "holds without tests": caught_in(
        "recover-3",
        "a voter runs the tests before it holds a transaction for a recovery",
        (
            _Recovery,
            "_try_to_hold",
            "never: bool | None = ",
            "state.votes.hold(transaction)\n    return say.Standing.HELD, []\n    never: bool | None = ",
        ),
    ),
    "holds a transaction that conflicts with a commit": fault(
        "a voter answers NEVER if the transaction conflicts with a commit outside its base",
        (_Recovery, "_try_to_hold", "if never or state.clock.cut", "if state.clock.cut"),
        **DUELS,
    ),
    "promises below its promise": caught_in(
        "two-ballots-5",
        "a promise is kept against lower ballots that ask for one",
        (_Recovery, "_promise", _LOWER, f"{_LOWER} and isinstance(message, say.Accept)"),
    ),
    "accepts below its promise": fault(
        "a promise is kept against decisions at lower ballots",
        (_Recovery, "_promise", _LOWER, f"{_LOWER} and isinstance(message, say.Recover)"),
        **DUELS,
    ),
    "holds below its cut": fault(
        "a voter answers NEVER if the transaction's clock is at or below the cut",
        (_Recovery, "_try_to_hold", "or state.clock.cut >= txid.clock", ""),
        **_ONE_WAY,
    ),
    "known outcome still accepts": fault(
        "a node that knows the outcome answers with it",
        (_Recovery, "_knows_outcome", "return self.voter.tell_outcome(peer, txid)", "return False"),
    ),
    "decided by one": fault(
        "a decision needs a majority", (_Recovery, "on_accepted", ">= self.state.roster.majority", ">= 1"), **DUELS
    ),
    "judged by one": caught_in(
        "recover-3",
        "a recovery judges the answers of a majority at least",
        (_Recovery, "on_promise", ">= self.state.roster.majority", ">= 1"),
    ),
    "accepted values ignored": fault(
        "a recovery proposes the accepted decision", (judge, "judge", "if accepted:", "if False:")
    ),
    "votes are volatile": caught_in(
        "restarts-3",
        "approvals are durable",
        (disk.Disk, "_keep", "self.durable.write(write)", "isinstance(write, Persist) or self.durable.write(write)"),
    ),
    "promises are volatile": fault(
        "promises and accepted decisions are durable",
        (disk, "copy_vote", "vote.held, vote.promised, vote.accepted", "vote.held, 0, None"),
        **_POWER_CUTS,
    ),
    "closed is the pending clock": fault(
        "closed time stays below pending transactions",
        (times, "times", "min(closable, lowest - 1)", "min(closable, lowest)"),
        **_TIGHT_TIME,
    ),
    "cut ignores what is pending": fault(
        "the cut stays below pending transactions", (times, "times", "min(most, lowest - 1)", "most"), **_TIGHT_TIME
    ),
    "cut is volatile": caught_in(
        "cut-3",
        "the cut is durable before it is announced",
        (disk.Image, "write", "self.meta[name] = value", "self.meta[name] = 0 if name == 'cut' else value"),
    ),
    "safe without cut": fault(
        "safe time needs a second round",
        (
            times,
            "times",
            "others_cut for _, others_cut in others], cut",
            "others_closed for others_closed, _ in others], closed",
        ),
        **_TIGHT_TIME,
    ),
    "reports believed at once": fault(
        "a peer's closed time counts when everything that the peer had applied is applied here",
        (_SafeTime, "_cover", "covers(self.state.timelines.applied, known.report[0])", "True"),
    ),
    "no floor after a restart": fault(
        "the clock's ceiling is durable",
        (disk.Image, "write", "self.meta[name] = value", "self.meta[name] = 0"),
        **_RESTARTS,
    ),
    "waiting goes on after a rollback": caught_in(
        "released-3",
        "a waiting transaction goes on when a rollback is accepted",
        (votes.Votes, "accept_rollback", "self.released.append(txid)", "pass"),
    ),
    "acceptances are volatile": caught_in(
        "restarted-acceptor-3",
        "an acceptance is durable",
        (_Recovery, "on_accept", "self.state.votes.persist(vote)", "pass"),
    ),
    "accepted rollbacks are volatile": caught_in(
        "partial-rollback-3",
        "an accepted rollback is durable",
        (votes.Votes, "accept_rollback", "self.persist(vote)", "pass"),
    ),
    "acceptances of other ballots count": caught_in(
        "two-recoverers-3", "an acceptance counts for its ballot", (_Recovery, "on_accepted", _OTHER_BALLOT, "")
    ),
    "promises of other ballots count": caught_in(
        "two-recoverers-3", "a promise counts for its ballot", (_Recovery, "on_promise", _OTHER_BALLOT, "")
    ),
    "the lowest accepted ballot wins": caught_in(
        "restarted-acceptor-3",
        "the accepted decision of the highest ballot counts",
        (judge, "judge", "max(acc", "min(acc"),
    ),
}
FAULTS: dict[str, Fault] = {**_AGREEMENT, **USES}
