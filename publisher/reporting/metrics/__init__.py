"""Metrics for Prometheus: the results of each target's last round, as a text file for the node
exporter and over HTTP.

After each round its target is measured, and the values are stored in the publishing database
(`ledger/books.py`): a process that runs one round and ends continues the counters of those before
it, and each target is shown as it was after its own last round. File and endpoint expose what is
stored there; `exporter.py` explains every name.
"""

from publisher.reporting.metrics.collector import after_round

__all__ = ["after_round"]
