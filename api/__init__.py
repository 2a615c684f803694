"""REST API: launch, look at and steer runs. Reads the store, talks to workflows, holds no state itself."""
