"""The expected and the actual results of a run."""
