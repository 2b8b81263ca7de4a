"""What APEL reads: CAR, job, summary and sync messages, and how APEL keys what it gets."""
