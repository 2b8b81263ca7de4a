"""Models of the services that records go to: what each keeps of the payloads that it is given."""
