"""Transactions of real clients: under kills and pauses of clients and node, and one right after another."""
