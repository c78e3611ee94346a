"""Programs to read and run; see docs/sqlalchemy.md."""
