"""`ovserve explain`: a graph as a picture: `diagram.py` reads the plan, `text.py` and `svg.py` draw it."""
