"""Clusters of three nodes: a killed broker, and rounds of faults under load."""
