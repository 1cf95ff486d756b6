"""The console: pages in a browser to chat with models and to watch, inspect and edit what is served.

`console.py` serves the files below `static/`, which need no build; `api.py` lists the calls under
/console/api/ that only the pages use. Third-party code lies in `static/vendor/` (see
`scripts/console_vendor`).
"""
