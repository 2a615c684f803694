"""The data plane: finished groups on their way from rollout to training."""
