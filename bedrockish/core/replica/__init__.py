"""The replica's part of a node, for transactions of any leader: votes, application in causal order, safe time."""
