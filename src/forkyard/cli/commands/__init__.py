"""One module a group of commands; each adds its commands to the app in `cli/main.py`."""
