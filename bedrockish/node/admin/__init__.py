"""An operator's orders to a node: status, traces, retention."""
