"""`make prove`: what Headrace promises, each promise by its named check."""
