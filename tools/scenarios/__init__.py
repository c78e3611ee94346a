"""The scenarios of ``tools/bench NAME``: a file for each, and a few parts that several of them share."""
