"""What a transaction read and wrote, as keys and ranges that mean the same on every node."""
