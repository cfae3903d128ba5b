"""Lines about clusters of three nodes: replicated writes, failover, catching up, many topics."""
