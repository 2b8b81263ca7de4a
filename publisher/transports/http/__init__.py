"""HTTP by `requests`: a session for each service, and around it what this field needs.

`requests` and `urllib3` prepare and send requests, tunnel through proxies, keep connections and
parse answers. Ours are
- `sockets`: the way from a name to the last byte, which ends with the time of an exchange;
- `tls`: the contexts, which trust what the configuration names and nothing else;
- `connection`: how far an exchange came, and what puts both under `requests`;
- `session`: one exchange, its answer read in bounds, or what its failure means (`failures`);
- `exchange`, `options`, `reachability`: texts and waits, configuration, and `doctor`.

A failure is `NOT_SENT` only where no byte of the request was handed to a connection.
"""
