"""The export as a Spark job: many machines read the files, which all of them see, and write one directory, likewise.

``spark-submit --master URL job.py FILES… --to DIRECTORY``. The result is the same as that of ``bedrockish
export-journal``, file by file, so the two can take turns.
"""

import argparse
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from bedrockish_journal.model.errors import JournalError
from bedrockish_journal.spark.export.export import STEP, Progress, Written, begin, publish, write_aside
from bedrockish_journal.spark.export.manifest import clear, locked, read_manifest
from bedrockish_journal.spark.source.feeds import expand, nodes_of, open_feed
from bedrockish_journal.spark.source.plans import Span, advance, cut, spans_between

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def export_with_spark(
    spark: "SparkSession", path: str, directory: str, step: int = STEP, *, oldest: bool = False
) -> list[Progress]:
    """Bring the export of nodes' files up to date, each range of ticks as a task; return how far each node goes.

    A run that is killed leaves nothing that counts; the next one begins where the last one ended.

    Args:
        spark: a session, of any cluster.
        path: the node files, as for the data source: paths separated by commas, globs and directories.
        directory: where; the driver and every worker must see it, and the files, under the same path.
        step: entries that one task takes.
        oldest: begin new exports with the oldest entry that a journal has.

    Raises:
        JournalError: a file cannot be read, or the directory cannot be used.
    """
    done = []
    for node, file in nodes_of(expand(path)).items():
        with locked(directory), open_feed(file) as feed:
            manifest = read_manifest(directory)
            clear(directory, manifest)
            start = begin(manifest, feed.context, oldest=oldest)
            end = advance(feed.ask, file, start)
            spans = [span for group in cut(spans_between(start, end), step) for span in group]
            written: list[Written] = []
            if spans:
                tasks = spark.sparkContext.parallelize(spans, len(spans))
                written = tasks.map(partial(_write, file, os.path.abspath(directory))).collect()
            if spans or node not in manifest.vectors:
                publish(directory, manifest, feed.context, end, written)
            entries = sum(high - low + 1 for _, low, high in spans)
            done.append(Progress(node, entries, entries, end))
    return done


def _write(file: str, directory: str, span: Span) -> Written:
    with open_feed(file) as feed:
        return write_aside(feed, span, directory)


def main() -> None:
    """Run the job with the arguments of the command line, in the session that spark-submit configures."""
    from pyspark.sql import SparkSession

    parser = argparse.ArgumentParser(description="Export journals to Parquet with Spark.")
    parser.add_argument("files", nargs="+", help="nodes' files, which every worker must see")
    parser.add_argument("--to", required=True, metavar="DIRECTORY", help="which every worker must see as well")
    parser.add_argument("--oldest", action="store_true", help="begin new exports with what the journals still have")
    given = parser.parse_args()
    spark = SparkSession.builder.appName("bedrockish export").getOrCreate()
    try:
        for told in export_with_spark(spark, ",".join(given.files), given.to, oldest=given.oldest):
            sys.stdout.write(f"{told.node}: {told.entries} new entries\n")
    except JournalError as error:
        sys.exit(f"error: {error}")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
