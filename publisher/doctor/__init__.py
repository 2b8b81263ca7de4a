"""Doctor: everything that can keep records from going out, looked at before it does. Sends no record and writes nothing.

`findings.py` is the noun; each other file asks about one part: `configuration.py` the configuration, `databases.py` the source,
`imports.py` the importers, `state.py` the state, `services.py` certificate, CAs and services, `host.py` the host. A new
check is a function there.
"""
