"""One module per API with its request and response; headers, embedded and stored messages beside them."""
