"""Rewards that cannot be forged: graders for math, code and generated tasks, format terms, the sum of them."""
