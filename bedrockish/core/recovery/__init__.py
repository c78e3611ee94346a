"""Recovery: a surviving voter finishes the transactions of a silent leader, with one Paxos instance for each."""
