"""Links that carry messages between two programs, independent of the database."""
