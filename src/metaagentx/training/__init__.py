"""Training: credit, stages, training data, metrics, and the loop that puts them together."""
