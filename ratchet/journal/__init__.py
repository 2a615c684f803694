"""The rollout journal: what was generated, durable before it counts as finished."""
