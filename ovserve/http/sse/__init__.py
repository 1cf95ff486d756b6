"""Server-sent events: the text of one, and the stream of a response."""
