"""Virtual tables: tables whose rows are replicated, and indexes that every node maintains by itself."""
