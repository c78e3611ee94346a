"""Bytes between two programs; knows nothing of databases."""
