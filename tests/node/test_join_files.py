"""The file of a node that joins has its name only when it is whole."""

from pathlib import Path

import pytest

from bedrockish.config.config import build
from bedrockish.engine.storage.database_file import is_node_file
from bedrockish.node.cluster import join
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
