"""The C programs of the benchmark, and their compilation."""
