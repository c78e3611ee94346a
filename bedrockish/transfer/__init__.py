"""Import, export and continuous backups of databases and tables: SQLite files, CSV."""
