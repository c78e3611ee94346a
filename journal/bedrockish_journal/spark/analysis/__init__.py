"""Questions to a cluster's history."""
