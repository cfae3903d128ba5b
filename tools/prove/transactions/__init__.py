"""Transactions of real clients that are killed and paused, on a node that is killed and paused too."""
