"""Connections to brokers, the cluster behind them, and the options and security of both."""
