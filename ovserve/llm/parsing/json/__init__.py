"""JSON as models write it: scanned while it arrives, and read as calls."""
