"""Client of envd, the daemon inside a sandbox. Every answer is untrusted: bounded in size and time."""
