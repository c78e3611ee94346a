"""What one node knows: members, peers, its clock, what is prepared, and which transactions conflict."""
