"""Whole groups of real clients, whose members come, go and are killed, on a node that is killed too."""
