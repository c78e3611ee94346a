"""A node's start warns of its files that other users of the machine can read."""

import logging
from pathlib import Path

import pytest

from bedrockish.config.config import build
from bedrockish.daemon import warn_of_readers


@pytest.mark.parametrize(
    ("database", "key", "warned"),
    [(0o600, 0o600, []), (0o640, 0o600, ["A.sqlite can be read"]), (0o600, 0o640, []), (0o600, 0o644, ["private key"])],
)
def test_files_that_others_can_read_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, database: int, key: int, warned: list[str]
) -> None:
    for name, mode in (("A.sqlite", database), ("A-key.pem", key)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    text = f'node = "A"\ndatabase = "{tmp_path}/A.sqlite"\n[security]\ntls = "{tmp_path}"\n'
    with caplog.at_level(logging.WARNING):
        warn_of_readers(build(text=text))
    assert len(caplog.messages) == len(warned)
    assert all(words in line for words, line in zip(warned, caplog.messages, strict=True))


def test_missing_key_file_is_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The links of a node that begins again use the key that it has read."""
    (tmp_path / "A.sqlite").touch(0o600)
    warn_of_readers(build(text=f'node = "A"\ndatabase = "{tmp_path}/A.sqlite"\n[security]\ntls = "{tmp_path}"\n'))
    assert not caplog.messages
