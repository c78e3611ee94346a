"""What ``tools/bench NAME`` measures: a file for each scenario, beside a few parts that several of them share."""
