"""Real Kafka clients behind one interface: each writes records, reads them, and looks up offsets by time."""

from __future__ import annotations

from tools.prove.clients.aiokafka_client import AiokafkaClient
from tools.prove.clients.confluent_client import ConfluentClient
from tools.prove.clients.java_client import JavaClient
from tools.prove.clients.kafka_python_client import KafkaPythonClient
from tools.prove.clients.kcat_client import KcatClient
from tools.prove.clients.samples import CODECS, Client, Seen, WriteOptions, differences

CLIENTS: tuple[Client, ...] = (
    ConfluentClient(),
    AiokafkaClient(),
    KafkaPythonClient(),
    KcatClient(),
    JavaClient(),
)

__all__ = ["CLIENTS", "CODECS", "Client", "Seen", "WriteOptions", "differences"]
