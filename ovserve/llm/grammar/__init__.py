"""Convert JSON schemas to EBNF: one rule per subschema, so the text grows linearly with the schema.

`writer.py` writes, `conjunction.py` resolves `$ref` and `allOf`, the other modules hold one kind of value
each. The library's own conversion is not used: it writes wrong ranges of decimals and unbounded white space.
"""
