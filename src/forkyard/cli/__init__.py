"""Commands: talk HTTP through `client`, except `serve`, which starts `node`."""
