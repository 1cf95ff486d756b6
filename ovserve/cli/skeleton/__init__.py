"""`ovserve new`: `write.py` has the text of a calculator and its test, and puts it into files."""
