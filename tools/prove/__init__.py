"""`make prove`: proves each promise of Headrace with a named check."""
