"""vLLM as an engine: its servers sample over HTTP, and take a trainer's weights. Left out: starting them (`launch`)."""
