"""`ovserve new`: `templates.py` has the text of a calculator and its test, `write.py` puts it into files."""
