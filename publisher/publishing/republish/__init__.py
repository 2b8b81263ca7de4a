"""Regenerate and deliver a window again."""
