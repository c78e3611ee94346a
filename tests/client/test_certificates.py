"""``bedrockish tls`` revokes the named certificate, and writes each file whole or not at all."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bedrockish.cli.certificates import Authority
from bedrockish.cli.secure import tls
from bedrockish.errors import ConfigError
from bedrockish_net.tls import read_revoked
from bedrockish_net.x509 import read_certificate
from tools.cluster import clean_environment


def run(*arguments: object) -> Result:
    return CliRunner().invoke(tls, [str(one) for one in arguments])


def serial(path: Path) -> int:
    return read_certificate(path.read_text())[0]


def test_lost_certificate_is_revoked_by_name(tmp_path: Path) -> None:
    """The certificate was moved to another machine, which is gone; the authority still knows its serial number."""
    assert run(tmp_path, "A=host1", "--client", "app").exit_code == 0
    lost = serial(tmp_path / "A.pem")
    for path in tmp_path.glob("A*.pem"):
        path.unlink()
    assert run(tmp_path, "--revoke", "A").exit_code == 0
    assert read_revoked((tmp_path / "revoked.txt").read_text()) == {lost}
    told = str(run(tmp_path, "--revoke", "A").exception)
    assert "no certificate of A counts any more" in told
    assert "knows no certificate of B; give its serial number" in str(run(tmp_path, "--revoke", "B").exception)


def test_name_with_two_certificates_is_not_revoked(tmp_path: Path) -> None:
    assert run(tmp_path, "--client", "app").exit_code == 0
    old = serial(tmp_path / "app.pem")
    for path in tmp_path.glob("app*.pem"):
        path.unlink()
    assert run(tmp_path, "--client", "app").exit_code == 0
    new = serial(tmp_path / "app.pem")
    told = str(run(tmp_path, "--revoke", "app").exception)
    assert "app has 2 certificates; name the one to revoke by its serial number" in told
    assert f"{old:X} is of app, made 2" in told
    assert f"{new:X} is of app, made 2" in told
    assert not (tmp_path / "revoked.txt").exists()
    assert run(tmp_path, "--revoke", f"{old:x}").exit_code == 0
    assert read_revoked((tmp_path / "revoked.txt").read_text()) == {old}
    assert run(tmp_path, "--revoke", "app").exit_code == 0, "the other one is the only one that is left"
    assert read_revoked((tmp_path / "revoked.txt").read_text()) == {old, new}


def test_certificate_that_is_not_in_issued_txt_can_be_revoked(tmp_path: Path) -> None:
    assert run(tmp_path, "--client", "app").exit_code == 0
    (tmp_path / "issued.txt").unlink()
    assert run(tmp_path, "--revoke", "app").exit_code == 0
    assert run(tmp_path, "--revoke", "0123456789ABCDEF").exit_code == 0
    expected = {serial(tmp_path / "app.pem"), 0x0123456789ABCDEF}
    assert read_revoked((tmp_path / "revoked.txt").read_text()) == expected


@pytest.mark.parametrize("blocked", ["A.pem", "A-key.pem"])
def test_existing_certificate_files_are_not_overwritten(tmp_path: Path, blocked: str) -> None:
    assert run(tmp_path, "B=host2").exit_code == 0
    (tmp_path / blocked).write_text("mine")
    assert f"{blocked} is there already" in str(run(tmp_path, "A=host1").exception)
    assert {path.name for path in tmp_path.glob("A*")} == {blocked}
    assert "A," not in (tmp_path / "issued.txt").read_text()


def _no_room() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_full_disk_leaves_no_empty_key_file(tmp_path: Path) -> None:
    """An empty key would block the next attempt, and look like a valid key."""
    made = "certs/ca-key.pem"
    command = [sys.executable, "-m", "bedrockish.cli.main", "tls", "certs", "A=host1"]
    failed = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(), preexec_fn=_no_room, capture_output=True, text=True, check=False
    )
    assert (failed.returncode, made in failed.stderr) == (2, True), failed.stderr
    assert not (tmp_path / made).exists()
    subprocess.run(command, cwd=tmp_path, env=clean_environment(), check=True)
    assert (tmp_path / made).stat().st_size > 60


def test_authority_without_its_key_is_reported(tmp_path: Path) -> None:
    Authority.at(tmp_path / "one", 30)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (tmp_path / "two" / "ca-key.pem").unlink()
    with pytest.raises(ConfigError, match=r"has only one of ca.pem and ca-key.pem; bring the other one"):
        Authority.at(tmp_path / "two", 30)


class Killed(BaseException):
    """Stands for SIGKILL: no handler of errors runs."""


class KilledAt:
    """Ends a program before its n-th call that changes files."""

    CALLS = ("open", "fsync", "replace", "unlink", "mkdir")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.left = number
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*given: object, **named: object) -> object:
            self.left -= 1
            if self.left == 0:
                raise Killed
            return call(*given, **named)

        return counted


def pairs(folder: Path) -> set[str]:
    """Return the names of the certificates that have their keys."""
    for path in folder.glob("*.pem"):
        assert path.read_bytes().rstrip().endswith(b"-----"), f"{path} is whole"
    names = {path.name.removesuffix("-key.pem") for path in folder.glob("*-key.pem")}
    assert names == {path.stem for path in folder.glob("*.pem")} - {f"{name}-key" for name in names}
    return names


@pytest.mark.parametrize("made_before", [False, True])
def test_killed_tls_runs_again_wherever_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_before: bool
) -> None:
    """Half a pair from the killed run does not block the next run, and no run touches a file of an earlier one."""
    for number in range(1, 200):
        folder = tmp_path / str(number)
        if made_before:
            assert run(folder, "Z=host9").exit_code == 0
        before = {path: path.read_bytes() for path in folder.glob("*.pem")}
        with monkeypatch.context() as patched:
            kill = KilledAt(patched, number)
            with suppress(Killed):
                run(folder, "A=host1")
        is_whole = folder.exists() and {"A.pem", "A-key.pem"} <= {path.name for path in folder.iterdir()}
        assert is_whole or run(folder, "A=host1").exit_code == 0
        assert run(folder, "B=host2").exit_code == 0
        assert pairs(folder) == {"ca", "A", "B"} | ({"Z"} if made_before else set())
        assert not list(folder.glob("*.part"))
        assert all(path.read_bytes() == data for path, data in before.items())
        if kill.left > 0:
            assert number > 15
            return
    pytest.fail("it never ends")


@pytest.mark.parametrize("file", ["revoked.txt", "issued.txt"])
def test_line_added_after_a_torn_one_counts(tmp_path: Path, file: str) -> None:
    """An earlier release, or an editor, may leave the last line without a line feed; a new line must not join it."""
    assert run(tmp_path, "--client", "app", "--client", "web").exit_code == 0
    assert run(tmp_path, "--revoke", "app").exit_code == 0
    torn = (tmp_path / file).read_text() + "1234ABCD"
    (tmp_path / file).write_text(torn)
    assert run(tmp_path, "--client", "new", "--revoke", "web").exit_code == 0
    assert run(tmp_path, "--revoke", "new").exit_code == 0
    gone = read_revoked((tmp_path / "revoked.txt").read_text())
    assert {serial(tmp_path / f"{name}.pem") for name in ("app", "web", "new")} <= gone
    assert (tmp_path / file).read_text().startswith(torn + "\n")


def test_list_of_revoked_certificates_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node reads the old list or the new one; after a kill, the old one is there."""
    assert run(tmp_path, "--client", "app", "--client", "web").exit_code == 0
    assert run(tmp_path, "--revoke", "app").exit_code == 0
    found = tmp_path / "revoked.txt"
    found.chmod(0o640)
    owner = 1 if os.getuid() == 0 else os.getuid()
    os.chown(found, owner, -1)
    for number in range(1, 100):
        before = found.read_bytes()
        with monkeypatch.context() as patched:
            kill = KilledAt(patched, number)
            with suppress(Killed):
                run(tmp_path, "--revoke", "web")
        if found.read_bytes() != before:
            assert kill.left <= 1, "the last call makes the new name durable"
            break
    assert {serial(tmp_path / "app.pem"), serial(tmp_path / "web.pem")} == read_revoked(found.read_text())
    assert (found.stat().st_mode & 0o777, found.stat().st_uid) == (0o640, owner)
