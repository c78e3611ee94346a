"""The laws of the journal as SQL, over all files at once: decoded once, asked by DuckDB on one machine or by Spark."""
