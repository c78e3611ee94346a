"""Recovery: a survivor finishes the transactions of a silent leader, one Paxos instance for each."""
