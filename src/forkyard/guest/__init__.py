"""Client of envd, the daemon inside a sandbox. Every answer is untrusted data: bounded in size and time, parsed by type."""
