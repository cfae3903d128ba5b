"""Lines about the group coordinator: commits, heartbeats, large groups and the restart of a coordinator."""
