"""What is told of runs elsewhere: numbers to metric sinks, incidents to webhooks, copied from the store."""
