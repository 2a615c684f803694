"""The supervisor: owns one RATCHET_HOME and keeps the processes of its stack running."""
