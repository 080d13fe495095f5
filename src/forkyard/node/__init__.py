"""Composition root: settings, driver registry, app factory, background loops, edge and keeper supervisors."""
