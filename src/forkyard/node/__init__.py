"""Composition root of a server: settings, parts, background loops. The only place that knows them all."""
