"""Counts of many rows at once, beside the careful reading of each."""
