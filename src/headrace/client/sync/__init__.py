"""Blocking clients: the interface of the asyncio clients, on one event loop in a background thread."""

from headrace.client.sync.admin import Admin
from headrace.client.sync.consumer import Consumer
from headrace.client.sync.producer import Producer, Transaction

__all__ = ["Admin", "Consumer", "Producer", "Transaction"]
