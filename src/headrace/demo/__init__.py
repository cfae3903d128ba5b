"""The web shop demo: a node, an event generator, pipelines, and a check of all results. `make run` starts it."""
