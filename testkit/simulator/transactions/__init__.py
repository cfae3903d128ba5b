"""Simulations of transactions."""
