"""The change feed: every commit once, in the order of the cluster's clock."""
