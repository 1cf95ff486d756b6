"""Bundle the third-party code of the console: `python -m scripts.console_vendor [--check]`.

Each file of `entries/` becomes one module in `ovserve/console/static/vendor/`, with the exact versions of
`package-lock.json`. `vendor.json` lists packages, licences and hashes, `LICENSES.txt` the texts. Node and npm
are needed here alone: the server and its wheel use what is checked in.
"""
