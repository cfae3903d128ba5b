"""The indexes of a segment, and lookups by time."""
