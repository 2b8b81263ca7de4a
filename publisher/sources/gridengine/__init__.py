"""Grid Engine's accounting, imported into a database like ARC's."""
