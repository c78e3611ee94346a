"""Finds the Java runtime that Spark needs, without Spark: bootstrap and tests ask before pyspark is installed."""

import os
import re
import shutil
import subprocess
from pathlib import Path

JAVA_MIN = 17
ADVICE = f"install Java {JAVA_MIN} or newer (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"


def find_java() -> tuple[str | None, str]:
    """Return the path of a Java that Spark can use, or None, and a sentence about the result."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if path is None:
        return None, "no Java on PATH and no JAVA_HOME"
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"{path} does not run: {error}"
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode != 0 or match is None:
        return None, f"{path} -version gave no version"
    major = int(match[1]) if match[1] != "1" else int(match[2] or 0)
    if major < JAVA_MIN:
        return None, f"{path} is Java {major}"
    return path, f"{path} is Java {major}"
