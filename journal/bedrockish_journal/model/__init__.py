"""The journal's values: vectors, entries, access sets, hash chains and causal order. Pure."""
