"""The web shop: a node, a generator of events, pipelines on them, and a check of all that came out. `make run` starts it."""
