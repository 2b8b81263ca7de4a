"""Finished jobs, deliveries and charges for other systems: as text, or as files for analytics."""
