"""The laws of the journal as SQL over all files at once, run by DuckDB on one machine or by Spark."""
