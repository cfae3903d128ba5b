"""The Produce load, and running a load through either listener of a system."""

from __future__ import annotations

from dataclasses import replace

from bench.load.frames import ACKS, Batch, produce_error_at, produce_frame, produce_response
from bench.load.generator import Load, Outcome, Span, Target, run_load, target_of
from bench.systems.servers import System

IN_FLIGHT = 5  # max.in.flight.requests.per.connection of Kafka's producer


def produce_load(topic: str, batches: list[Batch], partitions: int, in_flight: int, acks: int = ACKS) -> Load:
    """Return a load with one connection per batch, with partitions assigned in turn."""
    response_bytes = len(produce_response(topic))
    return Load(
        frames=[[produce_frame(topic, number % partitions, batch, acks)] for number, batch in enumerate(batches)],
        in_flight=in_flight,
        payload_bytes=batches[0].plain_size,
        error_at=produce_error_at(topic),
        response_min=response_bytes,
        response_max=response_bytes,
    )


def run_through(system: System, load: Load, span: Span, *, tls: bool) -> Outcome:
    """Run the load through the plain listener or the TLS listener."""
    if not tls:
        return run_load(load, target_of(system), span)
    listener = system.tls
    target = Target((listener.port,), (system.pid,))
    return run_load(replace(load, tls=listener.certificate.public), target, span)
