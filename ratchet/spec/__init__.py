"""What everybody shares: run specs, ids, receipts, faults, deadlines. Pydantic only, quick to import."""
