"""``bedrockish tls``: the certificate that is revoked; files are written whole or not at all."""

import resource
import shutil
import signal
import subprocess
import sys
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
