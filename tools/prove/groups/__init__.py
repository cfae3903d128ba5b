"""Groups of real clients whose members join, leave and are killed, on a node that is killed too."""
