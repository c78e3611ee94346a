"""The client's core without I/O: it decides what to send, what an answer means, and when and where to retry."""
