"""One round for one target: read, decide, batch or sum up, send, report."""
