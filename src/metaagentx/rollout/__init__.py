"""What a task becomes: designs, executions and their rewards (task -> Rollout)."""
