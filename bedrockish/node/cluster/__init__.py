"""Members: joining, sending and taking snapshots, admission, the known incarnations of peers."""
