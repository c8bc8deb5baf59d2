"""The only importers of torch and of clients for other engines. Each module is one way to have a Policy."""
