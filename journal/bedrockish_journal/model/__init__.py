"""The journal's values: vectors, entries, footprints, hash chains and causal order. Pure."""
