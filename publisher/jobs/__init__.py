"""The job store: each job as its source reported it last, in `jobs.db` of the state directory.

Sources are loaded into it (publishing/databases/load.py), and rounds ask it: what changed since,
what ended in a window, what is known of a job. It is a cache. What was delivered never depends on
it, so it may be deleted, and is loaded again.

    loaded: job 7 of ce.db, run 4711, ended 10:00     ->  change 1
    loaded: job 7 of ce.db, run 4711, ended 11:00     ->  change 2, in the place of 1
    loaded: job 7 of ce.db, run 4712, ended 12:00     ->  change 3, and 2 stays: another run
    changed since 2                                   ->  run 4712

It never asks a source, decides what is published, or remembers what was sent.
"""
