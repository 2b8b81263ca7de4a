"""A source, formats and a transport as somebody else would write them: a file each.

`tests/scenarios/test_plugins.py` puts them into place.
"""
