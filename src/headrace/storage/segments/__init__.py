"""One segment of a log and its files; the list of segments that make up a log."""
