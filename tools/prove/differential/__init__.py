"""The same script of requests, valid and invalid, to real Kafka and to Headrace, comparing every response.

Both run in step: Kafka's responses determine what the next request may refer to. What cannot be equal (random ids, the
time of day, the wording of messages) is normalized before comparing; intentional differences are listed in
`deviations`.
"""
