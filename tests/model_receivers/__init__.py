"""The model test: random histories of CEs, administrators and faults, against models of what receivers do.

It shares no assumption with the product: models and oracle are written from what the services do, and read the bytes
that are sent.

- `receivers`: models of APEL, SGAS and AUDITOR, with readers of their payloads.
- `world`: CEs that forget, and the memory of every run that ever was.
- `ledgers`: where the ledger of a story is, in SQLite or in PostgreSQL.
- `site`: the product at work, with transports that end at a model; kills, full disks and lost answers.
- `oracle`: the equation, and what a hold, a quarantine or a ticket explains of a difference.
- `stories`: random stories, their play and their shrinking; `python -m tests.model_receivers` counts failures by kind.
"""
