"""Typed HTTP client for the native API."""
