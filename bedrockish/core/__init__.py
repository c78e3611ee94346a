"""The protocol of one node, pure: told what happened, it answers what to do."""
