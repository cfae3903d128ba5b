"""The display of a run."""
