"""Stored responses: creation, background runs, history and queries of the Responses API."""
