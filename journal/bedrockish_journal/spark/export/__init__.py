"""Journals as Parquet."""
