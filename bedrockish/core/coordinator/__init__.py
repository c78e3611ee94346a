"""What a node does for the requests of its own clients: it leads their transactions from execution to the answer."""
