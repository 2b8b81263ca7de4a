"""The host certificate: loading, checking, signing."""
