"""Questions to a cluster's history, and their pictures."""
