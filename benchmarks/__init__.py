"""Measurements against the demands of the design. Each prints one JSON line with --json."""
