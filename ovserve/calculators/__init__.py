"""The graph nodes shipped with the server: thin shells over `api/openai/`, `llm/` and `engine/`.

`shipped.MODULES` lists them. Importing the package alone imports none.
"""
