"""Deployment of the server on clusters of other systems, one package per system."""
