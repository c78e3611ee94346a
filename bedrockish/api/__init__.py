"""What clients and nodes say to each other: requests, the wire, values, URLs and rows.

Pure: nothing here waits or opens anything.
"""
