"""A node with TLS, SASL and ACLs: its configuration files, its certificates, and the refusal of every API."""
