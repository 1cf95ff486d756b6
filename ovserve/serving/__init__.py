"""The servables that exist and their states; loading one from a graph directory; fetching packaged models."""
