"""Three replicas behind a round-robin router, with and without KV that travels: the published experiment."""
