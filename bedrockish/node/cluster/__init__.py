"""Members: joining, sending and taking snapshots, who may connect, which incarnations of a peer are known."""
