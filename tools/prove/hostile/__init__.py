"""Clients that send garbage, exhaust memory or put line breaks into names."""
