"""Tools for developing Headrace that are not part of the installed package: simulator, real Kafka nodes, histories, strategies."""
