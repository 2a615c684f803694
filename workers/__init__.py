"""The processes: control worker, session worker and its host, Ray actors, supervisor."""
