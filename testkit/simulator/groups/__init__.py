"""Simulations of consumer groups."""
