"""What several test files share: raw replicas and clients, and routers on free ports."""
