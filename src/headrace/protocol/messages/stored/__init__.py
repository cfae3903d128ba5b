"""Messages that rest in logs and files; stored.py of the package knows how they are framed there."""
