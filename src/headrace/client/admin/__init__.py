"""The admin client, one module per kind of resource."""
