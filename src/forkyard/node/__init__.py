"""Composition root of a server: settings, parts, background loops, the edge's supervisor. The only place that knows them all."""
