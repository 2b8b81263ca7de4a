"""What the site says about its jobs, and which of them a target wants.

A `RecordPolicy` makes a `PublishedJob` of a `JobRecord`; a `Selection` says whether a target wants
it. Nothing here reads a file, asks the time, or knows a receiver.

    policy.describe(job).who.vo   ->   "atlas"
"""
