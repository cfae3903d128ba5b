"""Requests about topics."""
