"""Checks for everything that could keep records from being sent. Sends and writes nothing.

`examination.py` asks everything, itself about the configuration and the host; `findings.py` defines
a finding; the other files each check one part: `databases.py` the source and the importers,
`state.py` the state, `services.py` certificate, CAs and services. A new check is a function there.
"""
