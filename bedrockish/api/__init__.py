"""The interface between clients and nodes: requests, wire messages, values, URLs and rows.

Pure: no module of this package does I/O.
"""
