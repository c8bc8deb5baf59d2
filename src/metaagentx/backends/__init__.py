"""The only importers of torch and of HTTP clients. Each module implements `Policy` or `ChatModel`."""
