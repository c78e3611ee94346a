"""Ends a program before one of its calls that change files, as SIGKILL or a power cut does (``ends.c``)."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cluster import clean_environment

SOURCE = Path(__file__).with_name("ends.c")
ENDED = 137  # the status of a process that was ended


def build(folder: Path) -> Path | None:
    """Compile the library, and return its path; None if the machine has no C compiler."""
    if (compiler := shutil.which("cc")) is None:
        return None
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "ends.so", SOURCE, "-lpthread"], check=True)
    return folder / "ends.so"


def start(library: Path, arguments: Sequence[object], folder: Path, image: Path, at: int) -> subprocess.Popen[str]:
    """Start ``bedrockish`` in a folder; it is ended before its ``at``-th call that changes a file there, if any.

    The folder ``image`` gets the bytes of each changed file as they were last synced.
    """
    shutil.rmtree(image, ignore_errors=True)
    image.mkdir()
    given = {"LD_PRELOAD": str(library), "ENDS_DIR": str(folder), "ENDS_AT": str(at), "ENDS_IMAGE": str(image)}
    return subprocess.Popen(
        [sys.executable, "-m", "bedrockish.cli.main", *map(str, arguments)],
        cwd=folder,
        env=clean_environment() | given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def cut_power(folder: Path, image: Path) -> None:
    """Give the files of a folder the bytes that were durable when the program ended; all names outlive the cut."""
    for path in folder.rglob("*"):
        kept = image / str(path.stat().st_ino)
        if path.is_file() and kept.exists():
            path.write_bytes(kept.read_bytes())
