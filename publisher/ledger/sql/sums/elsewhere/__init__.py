"""What counts at receivers and is not known by the messages of its runs.

Others sent it, or it was sent before the ledger was lost, or months ago that are closed by now.
"""
