"""The file of a node that joins has its name only when it is whole; until then, ``serve`` founds no cluster there."""

from pathlib import Path

import pytest

from bedrockish import daemon
from bedrockish.config.config import build
from bedrockish.engine.storage.database_file import is_node_file
from bedrockish.errors import BedrockishError, ConfigError, MembershipError, OutcomeUnknownError, UnavailableError
from bedrockish.node.cluster import join
from bedrockish.node.cluster.authentication import Credentials
from bedrockish_journal.model.levels import LEVEL
from bedrockish_journal.model.membership import Member, Membership, pack_membership


class Killed(BaseException):
    """Stands for SIGKILL."""


def test_killed_join_by_replay_leaves_no_file_on_which_serve_would_found_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "D.sqlite"
    config = build(text=f'node = "D"\ndatabase = "{path}"\n', file="D.toml", environment={}, flags={})
    founders = pack_membership(Membership(0, {"A": Member("A", "127.0.0.1:1")}, "0123456789abcdef", LEVEL))

    def make() -> None:
        join._make_empty(path, config, founders, "store of D", b"joining")

    def kill(*_: object) -> None:
        raise Killed

    for name in ("sync", "put_in_new_place"):
        with monkeypatch.context() as patched:
            patched.setattr(join, name, kill)
            with pytest.raises(Killed):
                make()
        assert not path.exists()
    make()
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert is_node_file(path)


class Admitting:
    """Stands for the client of a cluster that admits each node, or answers with errors, the last one repeatedly."""

    def __init__(self, *errors: BedrockishError) -> None:
        self.errors = list(errors)

    async def __aenter__(self) -> "Admitting":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def change_members(self, *_: object, **__: object) -> None:
        if self.errors:
            raise self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]


async def test_serve_founds_no_cluster_after_an_interrupted_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that loses power during the join, and then starts the node, would have a cluster that takes writes."""
    path = tmp_path / "D.sqlite"
    text = f'node = "D"\ndatabase = "{path}"\nlisten = "127.0.0.1:7"\n'
    config = build(text=text, file="D.toml", environment={}, flags={})

    async def begin(data: BaseException | None, *errors: BedrockishError) -> None:
        async def get_data(*_: object, **__: object) -> None:
            if data is not None:
                raise data

        monkeypatch.setattr(join, "open_client", lambda *_, **__: Admitting(*errors))
        monkeypatch.setattr(join, "_get_data", get_data)
        await join.join(config, "bedrockish://127.0.0.1:1", replay=False)

    async def found() -> str:
        return (await daemon._founding(config, Credentials(config))).node

    with pytest.raises(MembershipError):
        await begin(None, MembershipError("no"))
    assert await found() == "D", "the cluster has not admitted the node"
    perhaps, down = OutcomeUnknownError("perhaps"), UnavailableError("no node answers")
    for data, *errors in ((None, perhaps, down), (None, perhaps), (Killed(),), (None, MembershipError("no"))):
        with pytest.raises((BedrockishError, Killed)):
            await begin(data, *errors)
        with pytest.raises(ConfigError, match=r"'bedrockish join' was interrupted before D.sqlite was whole: run it"):
            await found()
    await begin(None)
    assert await found() == "D"
