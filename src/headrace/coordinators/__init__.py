"""Decisions about groups and transactions: machines on the journal of an internal topic."""
