"""`make prove`: a named check for each promise in docs/promises.md."""
