"""The same script of requests, good and bad, to real Kafka and to us; every answer is compared.

Both are driven in step: Kafka's answers say what the next request may refer to. What cannot be the same (ids that are drawn by lot, the
time of day, the wording of messages) is made the same before comparing; what we do otherwise on purpose is in `deviations`.
"""
