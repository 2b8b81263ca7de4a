"""Accounting publisher for a grid Computing Element or a batch head node.

A record's journey, room by room: a source (`sources/`) yields pages of job records; a selection (`model/selection.py`)
keeps those a target wants; policy (`model/policy.py`) says what the site wants said about them; quality rules
(`model/quality.py`) set aside what a receiver would refuse; a format (`formats/`) renders them; the packer
(`model/parcel.py`) cuts batches; the ledger (`ledger/`) writes a message down; a transport (`delivery/`) signs it, hands
it over and returns a receipt; the ledger settles it. `pipeline.py` is that sentence and nothing else.
"""

__version__ = "0.1.0"
