"""Running transactions: whole requests, groups, open transactions, schema changes, snapshots and cursors."""
