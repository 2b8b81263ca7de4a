"""The publishing database: what was sent, to whom, what is in doubt, what was set aside.

`contract.py` is the contract, in parts whose answers are in `answers.py`; `books.py` what is kept
beside it. `sql/` holds the statements, which any database takes that implements the `Database` of
`sql/database.py`; `sqlite/` what only SQLite knows: the file, its schema, its locks.

What a crash leaves behind: a message is written down with its records and its payload before it is
sent, and settled after the receipt. Between the two it is *outstanding*, and the next round sends
it first, the same bytes under the same id. How far the source was read moves in the same
transaction as the message that carries the last record before that point, so a lost page is read
again, and the entries of its runs (sql/entries.py) keep it from going out twice.
"""
