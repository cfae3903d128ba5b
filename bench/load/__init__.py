"""Load generation: request frames, the load generators, and topics filled before a measurement."""
