"""The clients without await: the same names and signatures, over one event loop in a thread of its own."""

from headrace.client.face.admin import Admin
from headrace.client.face.consumer import Consumer
from headrace.client.face.producer import Producer, Transaction

__all__ = ["Admin", "Consumer", "Producer", "Transaction"]
