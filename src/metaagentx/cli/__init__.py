"""The command line: one file per command, and the code that builds a running system from a recipe."""
