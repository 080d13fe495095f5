"""Words every other package may use: ids, time, errors, logs, tasks. Nothing here knows the domain."""
