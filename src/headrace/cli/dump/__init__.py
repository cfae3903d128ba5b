"""What `headrace dump-log` reads, checks and prints."""
