"""A run in the browser: server-rendered pages on the run folder alone."""
