"""Clusters on one machine, for people, the demo and tests: their layout, their folder and their background processes."""
