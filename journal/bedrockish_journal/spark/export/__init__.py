"""Journals as Parquet: batch jobs and a sink for streams."""
