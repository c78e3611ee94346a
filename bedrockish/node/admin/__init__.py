"""What an operator asks of a node: status, traces, retention."""
