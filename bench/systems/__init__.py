"""The systems under test: servers, clients that use a server, and the requests and measurements that lines share."""
