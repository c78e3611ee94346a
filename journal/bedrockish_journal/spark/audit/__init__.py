"""The laws of the journal, checked in Spark over the files of all nodes."""
