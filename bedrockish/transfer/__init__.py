"""Import and export of whole databases and tables: SQLite files, CSV."""
