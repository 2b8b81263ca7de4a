"""The plan: what a receiver should hold, less what the ledger says it holds.

Pure: jobs with what the site says of them, recorded entries and the receiver's rules go in; actions
with reasons come out: `runs.py` decides on each run, `rows.py` on the rows of totals that runs come
to and leave, and `reasons.py` has the sentences that people read of what is held back.

    job 4711 ended in 2026-10 with 3,600 s, the ledger has it with 3,000 s  ->  change
    its row keeps 16 other runs                                             ->  the row is said
    its old row loses its last run, and the receiver takes no zeros         ->  hold
"""
