"""ARC's accounting database, as A-REX writes it: the source that is published from."""
