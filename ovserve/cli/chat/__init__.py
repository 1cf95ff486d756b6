"""`ovserve run`: a chat in the terminal, over HTTP with a running server or with one of its own."""
