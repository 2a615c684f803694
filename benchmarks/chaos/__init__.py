"""The chaos harness: kill anything at a named moment, lose nothing, end bit-identical."""
