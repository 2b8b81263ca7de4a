"""Statements of the ledger that every database understands."""
