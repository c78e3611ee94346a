"""The serializability checker: histories of what clients saw, judged by graphs of who must come before whom."""
