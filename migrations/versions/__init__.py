"""One module per revision; a released one is never edited."""
