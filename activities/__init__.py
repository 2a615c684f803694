"""Activities: where workflows touch the world. They attach, record and report; engines do the work."""
