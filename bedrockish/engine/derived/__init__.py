"""Virtual tables: tables whose rows are replicated, and indexes that every node keeps by itself."""
