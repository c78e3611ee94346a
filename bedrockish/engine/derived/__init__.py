"""Virtual tables: those whose rows are replicated, and those that are indexes which every node keeps by itself."""
