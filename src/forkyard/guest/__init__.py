"""Client of envd; treats every answer as untrusted data."""
