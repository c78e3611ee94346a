"""The interface of clients and nodes: requests, the wire, values, URLs and rows.

Pure: nothing here waits or opens anything.
"""
