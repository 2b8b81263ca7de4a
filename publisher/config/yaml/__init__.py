"""YAML in, with the place of every word; every problem at once."""
