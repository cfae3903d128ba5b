"""Requests between the replicas of the metadata log, and about them."""
