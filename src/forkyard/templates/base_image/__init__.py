"""Builds the image of the `base` template from the distribution's packages.

Run as a program of its own (`python -m forkyard.templates.base_image`), by the set-up and by the server
alike: it takes a minute of one core. Only the standard library is used, so that it can start before there
is a virtual environment.
"""
