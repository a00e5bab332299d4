"""Config and policy files: read, checked with file:line errors, turned into what the core runs."""
