"""Finished jobs, deliveries and charges for other systems: as lines of text, or as files for
analytics.
"""
