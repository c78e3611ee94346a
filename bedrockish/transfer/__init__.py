"""Whole databases and tables in and out: import of files, CSV and dumps, export."""
