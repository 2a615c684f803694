"""What processes say of themselves: log lines, traces, and where their metrics are. Light: no Temporal, no
Ray."""
