"""Classic groups: members join, the leader assigns the partitions, and all members sync."""
