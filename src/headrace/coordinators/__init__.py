"""The group and transaction coordinators: state machines whose journals are partitions of internal topics."""
