"""gVisor driver: machines are `runsc` sandboxes, made by the keeper (or, as a fallback, by the command line)."""
