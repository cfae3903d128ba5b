"""The shop's events and topics."""
