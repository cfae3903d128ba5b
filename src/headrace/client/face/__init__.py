"""Blocking clients: the interface of the asyncio clients, on one event loop in a background thread."""

from headrace.client.face.admin import Admin
from headrace.client.face.consumer import Consumer
from headrace.client.face.producer import Producer, Transaction

__all__ = ["Admin", "Consumer", "Producer", "Transaction"]
