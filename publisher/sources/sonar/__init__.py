"""Slurm's accounting by Sonar, imported into a database like ARC's."""
