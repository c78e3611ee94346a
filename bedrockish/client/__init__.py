"""The clients of applications: the trio client, the blocking client and their shared core."""
