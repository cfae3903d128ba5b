"""Classic groups: members join, their leader assigns, everybody syncs."""
