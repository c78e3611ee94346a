"""The serializability checker: histories that clients recorded, judged by graphs of dependencies between operations."""
