"""Strict reads that share a question about every key: which of them do, when they are answered, and by whom."""

from functools import partial
from pathlib import Path

import pytest
import trio

from bedrockish.access_sets.readset import EVERYTHING
from bedrockish.api.requests import NOTHING, STRICT, Answer, Request, decode_results
from bedrockish.core.protocol.effects import NewerAnswered
from bedrockish.core.protocol.records import Prepared
from bedrockish.errors import BedrockishError, ConflictError, ForbiddenError, UnavailableError
from bedrockish.node.scheduling import strict_reads
from bedrockish_journal.model.access_set import AccessSet
from bedrockish_journal.model.transaction import ROWS
from tests.node.test_direct_reads import INSERT, Node, a_node
from tests.node.test_durability import request, settled


class Questions:
    """The questions of a node, which are answered when the test says so."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node, self.asked = node, list[tuple[int, dict[str, int]]]()
        core = node.runtime.core
        monkeypatch.setattr(core.read_checks, "ask_newer", lambda number, base: self.asked.append((number, dict(base))))

    def tell(self, *, may_exist: bool) -> None:
        """Answer the last question, as the core does."""
        self.node.runtime._do(NewerAnswered(self.asked[-1][0], may_exist=may_exist), [])  # type: ignore[arg-type]
        self.node.runtime.wake()

    def values(self) -> dict[str, int]:
        """Return the answers so far."""
        answers = self.node.answers
        return {
            name: decode_results(one.results)[0].rows[0][0] for name, one in answers.items() if isinstance(one, Answer)
        }


async def test_strict_read_of_a_quiet_node_is_answered_without_an_execution_by_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        await node.runtime.submit(request(INSERT, "first"))
        executed = node.runtime.counts["executions"]
        assert await node.value(read=STRICT) == 1
        assert node.runtime.counts["executions"] == executed


async def test_read_that_arrives_after_a_question_shares_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        questions = Questions(node, monkeypatch)
        node.ask("first", read=STRICT)
        await settled()
        node.ask("second", read=STRICT)
        node.ask("third", read=STRICT)
        await settled()
        assert len(questions.asked) == 1
        questions.tell(may_exist=False)
        assert questions.values() == {"first": 0}
        await settled()
        assert len(questions.asked) == 2
        questions.tell(may_exist=False)
        assert questions.values() == {"first": 0, "second": 0, "third": 0}


async def test_strict_answer_has_the_state_of_its_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row committed after the question may be the later of two, and the earlier may be missing."""
    async with a_node(tmp_path, monkeypatch) as node:
        questions = Questions(node, monkeypatch)
        node.ask("read", read=STRICT)
        await settled()
        await node.runtime.submit(request(INSERT, "after the question"))
        questions.tell(may_exist=False)
        assert questions.values() == {"read": 0}
        assert questions.asked[0][1].get("A", 0) < node.engine.applied["A"]


async def test_core_answers_reads_that_may_miss_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        questions = Questions(node, monkeypatch)
        node.ask("read", read=STRICT)
        await settled()
        await node.runtime.submit(request(INSERT, "after the question"))
        executed = node.runtime.counts["executions"]
        questions.tell(may_exist=True)
        await settled()
        assert questions.values() == {"read": 1}
        assert node.runtime.counts["executions"] == executed + 1


async def test_row_that_is_not_durable_yet_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        await node.hold_a_row()
        node.ask("strict", read=STRICT)
        await settled()
        assert "strict" not in node.answers
        node.disk.gate.set()
        with trio.fail_after(60):
            while "strict" not in node.answers:  # noqa: ASYNC110  the runtime has no event for it
                await trio.sleep(0.001)
        answer = node.answers["strict"]
        assert isinstance(answer, Answer)
        assert decode_results(answer.results)[0].rows == [(2,)]


async def test_strict_reads_beyond_a_number_wait_for_the_next_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict_reads, "READS_MAX", 3)
    async with a_node(tmp_path, monkeypatch) as node:
        questions = Questions(node, monkeypatch)
        for number in range(5):
            node.ask(f"read {number}", read=STRICT)
        await settled()
        questions.tell(may_exist=False)
        assert len(questions.values()) == 3
        await settled()
        questions.tell(may_exist=False)
        assert len(questions.values()) == 5


async def test_node_that_stops_refuses_the_reads_of_an_open_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        questions = Questions(node, monkeypatch)
        node.ask("asked", read=STRICT)
        await settled()
        node.ask("waiting", read=STRICT)
        assert node.runtime.is_busy(0.0)
        node.runtime.give_up()
        assert {name: type(answer) for name, answer in node.answers.items()} == {
            "asked": UnavailableError,
            "waiting": UnavailableError,
        }
        questions.tell(may_exist=False)  # comes too late, and changes nothing
        assert len(node.answers) == 2


async def test_reads_go_to_the_core_for_a_moment_after_an_unanswered_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict_reads, "PAUSE_S", 600.0)
    async with a_node(tmp_path, monkeypatch) as node:
        questions = Questions(node, monkeypatch)
        node.ask("in vain", read=STRICT)
        await settled()
        questions.tell(may_exist=True)
        assert await node.value(read=STRICT) == 0
        assert len(questions.asked) == 1
        node.runtime._strict._not_before = 0.0  # the moment is over
        node.ask("later", read=STRICT)
        await settled()
        assert len(questions.asked) == 2


class Program:
    """Reads that a program has executed on the node's file."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.told: dict[str, Answer | BedrockishError] = {}

    def read(self, name: str, base: dict[str, int], *, failure: BedrockishError | None = None) -> None:
        """Send a read of the table ``t`` that was executed on a state."""
        schema = self.node.engine.schema_version
        prepared = Prepared(base, schema, True, ROWS, AccessSet(read_ranges=EVERYTHING), b"", NOTHING)

        def prepare() -> Prepared:
            if failure is not None:
                raise failure
            return prepared

        asked = Request(name, (), STRICT, timeout_s=5)
        self.node.runtime.begin(asked, partial(self.told.__setitem__, name), prepare, once=True, base=base)


async def test_reads_of_programs_share_the_question_of_other_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        questions, program, base = Questions(node, monkeypatch), Program(node), dict(node.engine.applied)
        executed = node.runtime.counts["executions"]
        for name in ("first", "second"):
            program.read(name, base)
        node.ask("by url", read=STRICT)
        await settled()
        assert questions.asked == [(1, base)]
        program.read("later", base)
        questions.tell(may_exist=False)
        assert {name: type(answer) for name, answer in program.told.items()} == {"first": Answer, "second": Answer}
        answer = program.told["first"]
        assert isinstance(answer, Answer)
        assert answer.token.vector == base
        await settled()
        assert len(questions.asked) == 2
        questions.tell(may_exist=False)
        assert program.told.keys() == {"first", "second", "later"}
        assert node.runtime.counts["executions"] == executed


async def test_core_certifies_a_read_of_a_program_that_may_miss_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        questions, program, base = Questions(node, monkeypatch), Program(node), dict(node.engine.applied)
        program.read("valid", base)
        await settled()
        questions.tell(may_exist=True)
        await settled()
        assert isinstance(program.told["valid"], Answer)
        await node.runtime.submit(request(INSERT, "newer"))
        program.read("overtaken", base)
        await settled()
        assert len(questions.asked) == 1, "a state that lacks a commit of this node is no use in a question"
        assert isinstance(program.told["overtaken"], ConflictError)


async def test_overtaken_read_of_a_program_is_left_out_of_the_shared_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        questions, program, base = Questions(node, monkeypatch), Program(node), dict(node.engine.applied)
        node.ask("asked", read=STRICT)
        await settled()
        program.read("overtaken", base)
        await node.runtime.submit(request(INSERT, "newer"))
        node.ask("by url", read=STRICT)
        questions.tell(may_exist=False)
        await settled()
        assert questions.asked[1:] == [(2, dict(node.engine.applied))]
        assert isinstance(program.told["overtaken"], ConflictError)


async def test_rights_of_a_program_are_checked_before_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_node(tmp_path, monkeypatch) as node:
        questions, program = Questions(node, monkeypatch), Program(node)
        program.read("refused", dict(node.engine.applied), failure=ForbiddenError("a right was taken away"))
        await settled()
        assert not questions.asked
        assert isinstance(program.told["refused"], ForbiddenError)
