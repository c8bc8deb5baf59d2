"""MetaAgent-X: multi-agent systems that design themselves and learn to execute their designs."""

__version__ = "0.1.0"
