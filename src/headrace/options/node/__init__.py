"""Options of a node, by subject."""
