"""What an application holds: the trio client, the blocking client and their shared core."""
