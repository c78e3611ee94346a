"""The client without input and output: what to send, what an answer means, when and where to try again."""
