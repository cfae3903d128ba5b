"""Pipelines defined in Python files."""
