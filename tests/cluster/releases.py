"""Runs the last release, taken from git, next to the present one."""

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from bedrockish_journal.model.levels import LEVEL
from tools.cluster import ROOT

NAMED = Path(__file__).with_name("last_release.txt")  # its version and its commit
SOURCES = ("journal", "net")  # folders of a release from which it imports, besides its root


def unpack_last_release(folder: Path) -> list[Path]:
    """Put the files of the last release into a folder; return from where its program imports."""
    version, commit = NAMED.read_text().split()
    if not (ROOT / ".git").exists():
        pytest.skip("an unpacked archive has no history")
    made = subprocess.run(
        ["git", "archive", commit, "bedrockish", "journal", "net"], cwd=ROOT, capture_output=True, check=False
    )
    if made.returncode:
        said = made.stderr.decode()
        pytest.fail(f"commit {commit}, release {version}, is not in this clone (git fetch --unshallow): {said}")
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(folder, filter="data")
    assert f'__version__ = "{version}"' in (folder / "bedrockish" / "__init__.py").read_text()
    rooms = [folder / name for name in SOURCES if (folder / name / f"bedrockish_{name}").is_dir()]
    return [folder, *rooms]


def unpack_lower_level(folder: Path) -> list[Path]:
    """Put the files of the last release into a folder, and lower its release level by one; return its import path.

    As long as this release appends no message field, both releases have the same level.
    """
    sources = unpack_last_release(folder)
    file = folder / "bedrockish" / "common" / "levels.py"
    text = file.read_text()
    assert text.count(f"= {LEVEL}\n") == 2, "LEVEL and OLDEST"
    file.write_text(text.replace(f"= {LEVEL}\n", f"= {LEVEL - 1}\n"))
    return sources
