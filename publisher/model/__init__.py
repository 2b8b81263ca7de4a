"""Nouns and arithmetic, pure: no input, no output, no clock. Imports nothing of ours but `errors`."""
