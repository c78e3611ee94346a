"""The repair of a node with damaged tables: the node asks the other members, decides which tables are right, and fills
its file again from a proven copy, or from its own journal. The node keeps its name, its votes and its promises.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio

from bedrockish.api.url import parse_address
from bedrockish.client.compare_nodes import ComparisonReport
from bedrockish.client.credentials import ClientCredentials
from bedrockish.config.config import Config
from bedrockish.core.node import Node
from bedrockish.core.protocol.health import DAMAGED_TABLES, UNAPPLICABLE, UNPROVEN, Alarm, Mode, encode_alarm
from bedrockish.engine.engine import Engine
from bedrockish.engine.storage import refill
from bedrockish.engine.storage.rebuild_indexes import rebuild
from bedrockish.engine.storage.scratch_files import check_room, remove
from bedrockish.engine.storage.system_tables import ALARM, BLOCKED, VOID
from bedrockish.errors import BedrockishError, ConfigError, DamagedError, UnavailableError, UsageError
from bedrockish.node.cluster.join import calls, download
from bedrockish.node.repair.scrubber import Scrubber, peer_calls
from bedrockish.node.repair.verdict import COMMITTED, ROLLED_BACK, UNKNOWN, MemberAnswer, Ruling, Verdict, judge
from bedrockish.node.repair.verdict import VOID as VOIDED
from bedrockish.node.scheduling.durability import Durable
from bedrockish_journal.model.errors import EntryMalformedError, JournalError
from bedrockish_journal.model.transaction import Txid, parse_txid
from bedrockish_journal.model.vector import covers
from bedrockish_journal.verify.replay import Prepare
from bedrockish_net.events import Hello

logger = logging.getLogger(__name__)

EXAMINE_S = 2.0  # seconds between two examinations of the damage
BLOCKED_S = 5.0  # seconds between two checks whether another node has applied an entry that stops this node
PROVE_AGAIN_S = 30.0  # seconds until the next try, if the comparison of a copy with its journal lacked room
RESOLVE_TRIES = 10
OWN_JOURNAL, OWN_TABLES = "its own journal", "its own tables, with new indexes"
NAMED = ("entry", "txid", "table", "key", "page")  # the details of a damage that are stored, and shown in the status


class RestartError(Exception):
    """Raised to restart the node on its file, or on another file that takes its place."""

    def __init__(self, why: str, copy: Path | None = None) -> None:
        super().__init__(why)
        self.copy = copy  # the file that takes the place of the node's file; None: the node keeps its file


class Healer:
    """Finds out what is damaged at one node, and fills its file again."""

    def __init__(
        self,
        core: Node,  # has the alarms, and knows the members
        engine: Engine,
        config: Config,  # has the setting whether the repair begins without an order
        credentials: Callable[[], ClientCredentials],  # returns this node's credentials for links to other members
        scrubber: Scrubber,  # compares tables
        prepare: Prepare,  # registers the plugins' additions on a connection
        durable: Durable,
        restart: Callable[[RestartError | DamagedError], None],  # restarts the node
    ) -> None:
        self._core, self._engine, self._config, self._credentials = core, engine, config, credentials
        self._scrubber, self._prepare, self._durable, self._restart = scrubber, prepare, durable, restart
        self._ordered: str | None = None  # the ordered source: a node, or empty for any; None if no order waits
        self._wake = trio.Event()
        self._last_report = ""

    @property
    def _txid(self) -> Txid | None:
        alarm = self._core.state.health.alarms.get(DAMAGED_TABLES)
        text = alarm.details.get("txid") if alarm is not None else None
        return None if text is None else parse_txid(str(text))

    # -- orders ----------------------------------------------------------------------------------------------------

    async def entry(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the order ``entry``: return the outcome of a transaction as this node knows it, and the node's mode.

        Raises:
            UsageError: the order names no transaction.
        """
        state = self._core.state
        txid = _txid_of(asked)
        told = {"node": state.me, "mode": int(state.health.mode), "outcome": self._outcome(txid)}
        return told | {"blocked": txid in state.blocked}

    def _outcome(self, txid: Txid) -> str:
        state = self._core.state
        if txid in self._engine.entries.void:
            return VOIDED
        if self._engine.journal.has(txid):
            return COMMITTED
        # A transaction that only this node has given up counts as unknown: others may have its vote, and commit it.
        has_ended = state.votes.outcomes.get(txid) is False or txid.clock <= state.clock.safe
        # If this node is the only voter, its transaction is rolled back when it is given up or no longer pending.
        is_given_up = txid not in state.votes.pending or txid in self._core.coordinator.rollbacks
        decides = txid.leader == state.me and state.roster.voters == [state.me] and is_given_up
        return ROLLED_BACK if has_ended or decides else UNKNOWN

    async def repair(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the order ``repair``: start the repair now, if the tables or the journal are damaged.

        Raises:
            UsageError: the order names a node that is not another member.
        """
        state = self._core.state
        source = asked.get("from", "")
        if not isinstance(source, str) or (source and source != OWN_JOURNAL and source not in state.roster.peers):
            raise UsageError(f"there is no other member {source!r:.100}; there is {', '.join(state.roster.peers)}")
        if DAMAGED_TABLES in state.health.alarms:
            self._ordered = str(source)
            self._wake.set()
        elif self._engine.damaged:
            place, why = next(iter(self._engine.damaged.items()))
            reason = f"the entry {place} of the journal of node {state.me} is damaged: {why}"
            self._restart(DamagedError(reason, table="", entry=place))
            return {"node": state.me, "mode": Mode.DAMAGED.label, "reason": reason}
        elif (await self._scrubber.fits_journal())[0] is False:
            why = f"the tables of node {state.me} differ from a replay of its own journal"
            self._restart(DamagedError(why, table=""))
            return {"node": state.me, "mode": Mode.DAMAGED.label, "reason": why}
        return {"node": state.me, "mode": state.health.mode.label, "reason": state.health.reason}

    async def resolve(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the order ``resolve``: from now on, skip the changes of an entry that no node can apply.

        Raises:
            UsageError: the entry stops no node, or a node may have applied and acknowledged it.
        """
        state, txid = self._core.state, _txid_of(asked)
        if txid in self._engine.entries.void:
            return {"node": state.me, "resolved": str(txid)}
        if self._engine.journal.has(txid):
            raise UsageError(
                f"node {state.me} has applied {txid}, and may have acknowledged it: repair the other nodes from here "
                "('bedrockish member repair URL NODE')"
            )
        await self._check_resolvable(txid, force=asked.get("force") is True)
        self._engine.set_meta(f"{VOID}{txid}", 1)
        self._engine.set_meta(f"{BLOCKED}{txid}", None)
        self._engine.entries.void.add(txid)
        if state.blocked == {txid}:
            self._engine.set_meta(ALARM + UNAPPLICABLE, None)
        await self._durable()
        logger.warning("an operator has decided that %s is applied without its changes", txid)
        if txid in state.blocked or self._txid == txid:
            self._restart(RestartError(f"{txid} is applied without its changes from now on"))
        return {"node": state.me, "resolved": str(txid)}

    async def _check_resolvable(self, txid: Txid, *, force: bool) -> None:
        """Check that an entry stops a node, and that no node may have acknowledged it."""
        state = self._core.state
        answers, silent = await self._ask(txid)
        for _ in range(RESOLVE_TRIES):  # several tries: a node that has just followed the same order is restarting
            if not silent or force:
                break
            await trio.sleep(1.0)
            answers, silent = await self._ask(txid)
        if txid not in state.blocked and not any(
            answer.blocked or answer.outcome == VOIDED for answer in answers.values()
        ):
            known = ", ".join(map(str, sorted(state.blocked))) or "nothing"
            raise UsageError(f"{txid} stops no node; node {state.me} is stopped by {known}: see bedrockish status")
        has = [node for node, answer in answers.items() if answer.outcome == COMMITTED]
        if has and not force:
            raise UsageError(
                f"{', '.join(has)} has applied {txid}, and may have acknowledged it: repair the other nodes from there "
                "('bedrockish member repair'), or resolve it with --force: then only the journals have its changes"
            )
        if silent and not force:
            raise UsageError(
                f"{', '.join(silent)} does not answer, and may have applied {txid}: start it, or resolve with --force"
            )

    # -- looking ---------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Examine the tables, report the findings, and repair, while the tables are damaged; until cancelled."""
        health = self._core.state.health
        while DAMAGED_TABLES in health.alarms:
            try:
                verdict, report = await self.examine()
                self._report(verdict.why)
                await self._act_on(verdict, report)
            except (BedrockishError, JournalError) as error:
                self._report(f"it cannot be repaired now: {error}")
            with trio.move_on_after(EXAMINE_S):
                await self._wake.wait()
            self._wake = trio.Event()
        while self._core.state.blocked:
            for txid in sorted(self._core.state.blocked):
                await self._check_blocked(txid)
            await trio.sleep(BLOCKED_S)

    async def prove(self) -> None:
        """Compare the tables with the journal once, if they are a copy that was not compared yet.

        Until then the node only reads: it leads and approves nothing, also as a voter.
        """
        health, me = self._core.state.health, self._core.state.me
        while UNPROVEN in health.alarms and health.applies:
            logger.info("comparing the tables of the copy with its journal")
            try:
                fits, why_not = await self._scrubber.fits_journal()
            except ConfigError as error:  # no room for the comparison
                logger.warning("the copy cannot be compared with its journal now: %s", error.message)
                await trio.sleep(PROVE_AGAIN_S)
                continue
            if fits is False:
                why = f"the tables of node {me} are a copy, and differ from a replay of its journal"
                self._restart(DamagedError(f"{why}: {why_not}", table=""))
                return
            self._engine.set_meta(ALARM + UNPROVEN, None)
            await self._durable()
            health.clear_alarm(UNPROVEN)
            logger.info("the tables of the copy equal a replay of its journal")

    async def _check_blocked(self, txid: Txid) -> None:
        """Restart this node as damaged if another node has applied the entry that stops this node."""
        answers, _ = await self._ask(txid)
        fits = [node for node, answer in answers.items() if answer.has_it]
        if fits:
            why = f"{txid}, which does not fit at node {self._core.state.me}, is applied at {', '.join(fits)}"
            self._restart(DamagedError(why, table="", txid=str(txid)))

    async def _ask(self, txid: Txid) -> tuple[dict[str, MemberAnswer], list[str]]:
        """Ask all other members about a transaction; return their answers, and the names of the silent members."""
        others = list(self._core.state.roster.peers)
        answers: dict[str, MemberAnswer] = {}
        async with peer_calls(self._core, self._config, self._credentials(), others) as links:
            for node, call in links.items():
                try:
                    told = await call({"do": "entry", "txid": str(txid)})
                    answers[node] = MemberAnswer(Mode(told["mode"]), str(told["outcome"]), told.get("blocked") is True)
                except (BedrockishError, KeyError, ValueError, TypeError) as error:
                    logger.info("%s does not report its facts about %s: %s", node, txid, error)
        return answers, [node for node in others if node not in answers]

    async def examine(self) -> tuple[Verdict, ComparisonReport | None]:
        """Return the verdict on this node's tables, and the report of the comparison with other nodes, if any."""
        state, txid = self._core.state, self._txid
        details = state.health.alarms[DAMAGED_TABLES].details
        answers: dict[str, MemberAnswer] = {}
        silent: list[str] = []
        own = UNKNOWN
        if txid is None and "entry" in details:
            return Verdict(Ruling.ALONE, f"the entry {details['entry']} of its journal is damaged"), None
        if UNPROVEN in state.health.alarms:
            return Verdict(Ruling.ALONE, "its tables are a copy that does not fit its journal"), None
        if txid is not None:
            answers, silent = await self._ask(txid)
            own = self._outcome(txid)
        # The comparison reads tables only, so it does not notice a damaged page of an index.
        fault = await self._find_fault() if "page" in details else ""
        try:
            report = await self._scrubber.compare(list(state.roster.peers), tries=1)  # this node applies nothing
            agrees, why = self._agrees(report)
        except UnavailableError as error:
            report, agrees, why = None, None, f"no other node can be compared: {error.message}"
        if fault:
            agrees, why = False, f"its file is damaged: {fault}"
        elif not agrees:  # a replay of the whole journal is better evidence than a majority
            agrees, why = await self._agrees_with_journal(agrees, why)
        what = f"{details.get('entry', txid)} ({txid})" if txid is not None else ""
        leads = txid is not None and txid.leader == state.me
        return judge(what, own, answers, silent, agrees, why, leads=leads), report

    async def _find_fault(self) -> str:
        return await trio.to_thread.run_sync(
            refill.find_fault, self._config.database, self._prepare, trio.from_thread.check_cancelled
        )

    def _agrees(self, report: ComparisonReport) -> tuple[bool | None, str]:
        me, members = self._core.state.me, len(self._core.state.roster.membership.members)
        mine = [one for one in report.differences if me in one.minority]
        if mine:
            return False, str(mine[0])
        if any(me in one.nodes for one in report.differences if not one.minority):
            return None, "the nodes differ, and no majority says which is right"
        if report.skipped:
            return None, f"not all could be compared: {report.skipped[0]}"
        wrong = {node for one in report.differences for node in one.minority}
        agreeing = [node for node in report.nodes if node not in wrong]
        if 2 * len(agreeing) <= members:
            return None, f"only {', '.join(agreeing)} of {members} members could be compared"
        return True, f"its tables are those of {', '.join(node for node in agreeing if node != me)}"

    async def _agrees_with_journal(self, agrees: bool | None, why: str) -> tuple[bool | None, str]:
        """Return whether the tables equal a replay of the journal, and why; or the arguments if it is incomplete."""
        same, why_not = await self._scrubber.fits_journal()
        if same is None:
            return agrees, f"{why}; and this node's journal cannot be replayed: {why_not}"
        return same, f"its tables equal a replay of its journal ({why})" if same else f"{why_not} ({why})"

    # -- repairing -------------------------------------------------------------------------------------------------

    async def _act_on(self, verdict: Verdict, report: ComparisonReport | None) -> None:
        state = self._core.state
        if verdict.ruling is Ruling.SOUND:
            self._engine.set_meta(ALARM + DAMAGED_TABLES, None)
            await self._durable()
            self._restart(RestartError(f"the tables are sound: {verdict.why}"))
        elif verdict.ruling is Ruling.NOWHERE and self._txid is not None:
            await self._block(self._txid, verdict.why)
        elif verdict.ruling is Ruling.ALONE:
            if not self._config.repair.repair_automatic and self._ordered is None:
                self._report(f"run 'bedrockish member repair URL {state.me}'")
                return
            await self._refill(report)
        elif self._ordered:
            await self._refill(report)  # an operator has named the source, so it needs no verdict

    async def _refill(self, report: ComparisonReport | None) -> None:
        """Make a new file from the first source that works, and restart the node on it."""
        why = []
        for source in self._sources(report):
            try:
                own = {OWN_JOURNAL: self._from_own_journal, OWN_TABLES: self._from_own_tables}.get(source)
                copy = await (own() if own is not None else self._from(source, report))
            except (BedrockishError, JournalError) as error:
                why.append(f"{source}: {error}")
                logger.warning("not filled from %s: %s", source, error)
                with suppress(OSError):  # the next copy needs the space
                    await trio.to_thread.run_sync(remove, refill.refill_path(self._config.database))
                continue
            logger.warning("filling the tables again from %s", source)
            self._restart(RestartError(f"filled again from {source}", copy))
            return
        self._report(f"the tables cannot be filled again from any source: {'; '.join(why) or 'no node answers'}")

    def _sources(self, report: ComparisonReport | None) -> list[str]:
        if self._ordered:
            return [self._ordered]
        wrong = {node for one in report.differences for node in one.minority} if report is not None else set[str]()
        serving = [node for node, peer in self._core.state.roster.peers.items() if peer.up and peer.mode < Mode.DAMAGED]
        # If only a page is damaged, the rows of this node's own tables may still be right: the last source.
        is_page = "page" in self._core.state.health.alarms[DAMAGED_TABLES].details
        return [*sorted(node for node in serving if node not in wrong), OWN_JOURNAL, *[OWN_TABLES] * is_page]

    async def _from(self, source: str, report: ComparisonReport | None) -> Path:
        """Fetch a copy of another node's file and, without an operator's order, check that its tables are right."""
        state, target = self._core.state, refill.refill_path(self._config.database)
        address = parse_address(state.roster.membership.members[source].address, where=f"member {source}")
        async with calls(
            address, Hello(f"repair-{state.me}", self._config.cluster, "client"), self._credentials()
        ) as call:
            await download(call, target, partial(check_room, target))
        go_on = trio.from_thread.check_cancelled
        has = await trio.to_thread.run_sync(refill.check_copy, target, dict(state.timelines.applied), go_on)
        assert covers(has, state.timelines.applied)
        if not self._ordered:
            await self._prove(source, target, report)
        return target

    async def _prove(self, source: str, copy: Path, report: ComparisonReport | None) -> None:
        """Check that the tables of a copy are right: by the copy's journal, or else by a majority."""
        try:
            await trio.to_thread.run_sync(refill.prove_copy, copy, self._prepare, trio.from_thread.check_cancelled)
        except refill.NotWholeError:
            if not self._proven(source, report):
                raise

    def _proven(self, source: str, report: ComparisonReport | None) -> bool:
        """Return whether the tables of a source equal those of a majority of the members, without this damaged node.

        If another node is damaged, too, return False: its rows, which may be the right ones, were not compared.
        """
        state = self._core.state
        if report is None or report.skipped or source not in report.nodes:
            return False
        if any(peer.mode >= Mode.DAMAGED for peer in state.roster.peers.values()):
            return False
        wrong = {node for one in report.differences for node in (one.minority or one.nodes)} | {state.me}
        agreeing = [node for node in report.nodes if node not in wrong]
        return source in agreeing and 2 * len(agreeing) > len(state.roster.membership.members)

    async def _from_own_journal(self) -> Path:
        target = refill.refill_path(self._config.database)

        def go_on() -> None:
            trio.from_thread.check_cancelled()
            check_room(target)

        await trio.to_thread.run_sync(refill.replay_own, self._config.database, target, self._prepare, go_on)
        return target

    async def _from_own_tables(self) -> Path:
        target = refill.refill_path(self._config.database)

        def make() -> None:
            with closing(self._engine.background.open_reader()) as reader:
                rebuild(reader, target, self._prepare, trio.from_thread.check_cancelled)

        await trio.to_thread.run_sync(make)
        return target

    async def _block(self, txid: Txid, why: str) -> None:
        """Restart the node read-only, on its right tables; the entry that no node can apply stays unapplied."""
        state = self._core.state
        reason = (
            f"{why}. The cluster only reads until an operator decides: read docs/operating.md, then run "
            f"'bedrockish member resolve URL {txid}'"
        )
        self._engine.set_meta(f"{BLOCKED}{txid}", 1)
        alarm = state.health.set_alarm(UNAPPLICABLE, Mode.READ_ONLY, reason, txid=str(txid))
        self._engine.set_meta(ALARM + UNAPPLICABLE, encode_alarm(alarm))
        self._engine.set_meta(ALARM + DAMAGED_TABLES, None)
        await self._durable()
        self._restart(RestartError(reason))

    def _report(self, what: str) -> None:
        """Add the present findings to the alarm, which the status shows."""
        health = self._core.state.health
        alarm = health.alarms[DAMAGED_TABLES]
        details = {**alarm.details, "verdict": what}
        health.set_alarm(DAMAGED_TABLES, alarm.mode, alarm.reason, **details)
        if what != self._last_report:
            logger.warning("%s", what)
            self._last_report = what


def note_damage(engine: Engine, damage: DamagedError) -> None:
    """Record durably in the file that its tables are damaged; the node reads this at its next start."""
    kept = {name: str(damage.details[name]) for name in NAMED if damage.details.get(name)}
    engine.set_meta(ALARM + DAMAGED_TABLES, encode_alarm(Alarm(Mode.DAMAGED, damage.message, kept)))
    engine.flush()
    engine.sync()


def _txid_of(asked: Mapping[str, Any]) -> Txid:
    try:
        return parse_txid(str(asked.get("txid")))
    except EntryMalformedError as error:
        raise UsageError(f"a transaction is named like A-64f0c3a1b2c00000, not {asked.get('txid')!r}") from error
