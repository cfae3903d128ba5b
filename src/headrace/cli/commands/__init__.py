"""The commands of `headrace`, one module each."""
