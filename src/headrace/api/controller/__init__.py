"""Requests on a controller listener."""
