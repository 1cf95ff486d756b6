"""Which servables exist and in what state; loading one from a graph directory; fetching packaged models."""
