"""A Spark session on this machine that starts fast, prints nothing, and reports in plain words why it cannot start.

Spark's output (its log, the JVM's warnings, the workers' stderr) goes to a file, so that a terminal shows only the
report. The settings are for one machine. Any other session works as well, after ``bedrockish_journal.spark.register``.
"""

import atexit
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from bedrockish_journal.model.errors import JournalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_LEAST = 17
_LOG4J = """rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n%ex
"""
_LIGHT = " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_BRIEF = {  # queries are not compiled to Java, and each is planned once, for one partition of Spark
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
_HOW = "on Debian or Ubuntu: apt install openjdk-17-jre-headless; elsewhere: https://adoptium.net; or set JAVA_HOME"


class SparkUnavailableError(JournalError):
    """Raised when Spark, pyarrow or Java is missing or too old. Install what the message names."""


def why_no_java() -> str:
    """Return why Spark would find no Java that it can use, with the remedy; empty if it finds one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    needed = f"Spark needs Java {JAVA_LEAST} or later"
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the PATH"
        return f"{needed}, and {where}; {_HOW}"
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} does not run ({error}); {needed}; {_HOW}"
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if found is None:
        return f"{java} does not say its version; {needed}; {_HOW}"
    major = int(found[2] or 0) if found[1] == "1" else int(found[1])
    return f"{java} is Java {major}; {needed}; {_HOW}" if major < JAVA_LEAST else ""


def check_java() -> None:
    """Check that Spark finds a Java that it can use.

    Raises:
        SparkUnavailableError: Java is missing, or older than 17.
    """
    if why := why_no_java():
        raise SparkUnavailableError(why)


def check_installed(*packages: str) -> None:
    """Check that packages are installed.

    Raises:
        SparkUnavailableError: a package is missing.
    """
    for name in packages:
        try:
            __import__(name)
        except ImportError as error:
            raise SparkUnavailableError(f"{name} is not installed; pip install 'bedrockish[spark]'") from error


def quiet_session(
    name: str = "bedrockish", cores: int | None = None, memory: str = "2g", *, brief: bool = False
) -> "SparkSession":
    """Return the active Spark session of this machine, or start one, with the data source registered.

    Args:
        cores: the number of threads; all cores by default.
        memory: the JVM's heap, in Spark's notation.
        brief: save the time of compilation and planning, which pays off only with much data.

    Raises:
        SparkUnavailableError: pyspark or Java is missing or too old, or the JVM did not start.
    """
    check_installed("pyspark", "pyarrow")
    check_java()
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    from bedrockish_journal.spark import register

    for logger in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)  # these loggers repeat raised errors as JSON
    # PySpark warns on stderr about a pandas that is newer than the tested one. Nothing here uses pandas.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers would take the python3 of the PATH
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    running = SparkSession.getActiveSession()
    if running is not None:
        register(running)
        return running
    directory = make_directory()
    log = directory / "spark.log"
    conf = SparkConf().setAll(list(_settings(directory, log, name, cores, memory).items()))
    if brief:
        conf.set("spark.driver.extraJavaOptions", conf.get("spark.driver.extraJavaOptions", "") + _LIGHT)
        conf.setAll(list(_BRIEF.items()))
    try:
        with open(log, "ab") as sink:
            # A process can have only one JVM, so the JVM of an earlier session is used again.
            gateway = SparkContext._gateway or launch_gateway(  # type: ignore[no-untyped-call]
                conf, {"stdout": sink, "stderr": sink}
            )
        spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
    except Exception as error:  # py4j and pyspark raise many kinds; each of them means a failed start
        tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        raise SparkUnavailableError(f"Spark did not start ({error}); its last words: {tail.strip()}") from error
    register(spark)
    return spark


def make_directory() -> Path:
    """Make a directory that is removed at the end of this process; a child of a fork leaves it to its parent."""
    directory, maker = Path(tempfile.mkdtemp(prefix="bedrockish-spark-")), os.getpid()

    def remove() -> None:
        if os.getpid() == maker:
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory


def _settings(directory: Path, log: Path, name: str, cores: int | None, memory: str) -> dict[str, str]:
    log4j = directory / "log4j2.properties"
    log4j.write_text(_LOG4J.format(log=log))
    return {
        "spark.app.name": name,
        "spark.master": f"local[{cores or '*'}]",
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    }
