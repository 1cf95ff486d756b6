"""Tests of ovserve.deploy."""
