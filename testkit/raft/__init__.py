"""A fast loop of raft nodes without I/O or an event loop, with faults and checks of Raft's properties."""
