"""Unit tests: they need no daemon."""
