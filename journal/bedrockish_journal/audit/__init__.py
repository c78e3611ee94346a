"""The laws of the journal as SQL over all files at once, run by DuckDB or by Spark."""
