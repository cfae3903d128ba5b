"""Membership in consumer groups of both protocols, and committed offsets."""
