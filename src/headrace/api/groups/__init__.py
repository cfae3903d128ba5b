"""Requests of groups and their committed offsets."""
