"""A model of a vLLM replica: in virtual time, and as an HTTP server."""
