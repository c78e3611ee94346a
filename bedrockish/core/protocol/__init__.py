"""What nodes say (messages), what happens at one (events), what it does about it (effects), what it keeps (records)."""
