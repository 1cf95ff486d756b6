"""Tests on a real Ray cluster: `make test-ray`."""
