"""Transactions: a shard of them as a machine over one partition of __transaction_state."""
