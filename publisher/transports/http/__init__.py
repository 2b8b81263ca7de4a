"""HTTP over TLS with a client certificate: sessions, connections, errors, retry."""
