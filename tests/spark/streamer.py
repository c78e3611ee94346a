"""A Spark program that tests kill while it streams a journal's commits into Parquet.

``python -m tests.spark.streamer FILE OUT CHECKPOINT MOST [once]``; with ``once`` it ends after all present commits.
"""

import sys

from bedrockish_journal.spark import parquet_batches
from bedrockish_journal.spark.session import quiet_session


def main() -> None:
    path, out, checkpoint, most = sys.argv[1:5]
    spark = quiet_session("streamer", cores=2, memory="512m", brief=True)
    source = spark.readStream.format("bedrockish").option("max_commits", most).load(path)
    sink = source.writeStream.foreachBatch(parquet_batches(out)).option("checkpointLocation", checkpoint)
    if sys.argv[5:] == ["once"]:
        sink = sink.trigger(availableNow=True)
    sink.start().awaitTermination()


if __name__ == "__main__":
    main()
