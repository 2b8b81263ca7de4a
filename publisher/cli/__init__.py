"""Arguments in, output and exit status out. The only composition root."""
