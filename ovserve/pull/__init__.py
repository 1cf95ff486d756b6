"""`ovserve pull`: models from packages, the hub or this machine, and a graph that serves each."""
