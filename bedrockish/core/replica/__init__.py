"""What a node does for transactions of any leader: it votes, applies in causal order, and computes safe time."""
