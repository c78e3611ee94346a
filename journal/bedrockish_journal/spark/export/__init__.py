"""Journals as Parquet: exports and a sink for streams."""
