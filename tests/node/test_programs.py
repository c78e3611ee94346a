"""The node decodes long transactions of programs in a thread."""

import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from bedrockish.api.requests import Answer, Request
from bedrockish.core.protocol.records import Prepared
from bedrockish.local.prepared import encode_prepared
from bedrockish.node.transactions import programs
from bedrockish.node.transactions.steps import RemainingSteps
from bedrockish_journal.model.access_set import AccessSet
from tests.node.test_durability import open_runtime, request


async def test_node_commits_while_it_decodes_a_long_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, _, engine = open_runtime(tmp_path, "A", monkeypatch)
    monkeypatch.setattr(programs, "AT_ONCE_BYTES", 0)
    begun, committed, decode = threading.Event(), threading.Event(), programs._decode

    def slowly(data: bytes) -> Any:
        begun.set()
        assert committed.wait(10), "the loop waited for the decoding"
        return decode(data)

    monkeypatch.setattr(programs, "_decode", slowly)
    data = encode_prepared(Prepared({}, 0, True, "rows", AccessSet(), b"", b"\x80"))
    answers: list[Answer] = []

    async def commit() -> None:
        steps = runtime.transactions.programs.begin(Request("long", (), timeout_s=5), data, is_nodes=False)
        assert isinstance(steps, RemainingSteps)
        answers.append(await steps())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.run)
        async with trio.open_nursery() as committing:
            committing.start_soon(commit)
            await trio.to_thread.run_sync(begun.wait)
            await runtime.submit(request("CREATE TABLE t(id INTEGER PRIMARY KEY, x)", "create"))
            assert not answers
            committed.set()
        assert answers
        nursery.cancel_scope.cancel()
    runtime.leave()
    engine.close()
