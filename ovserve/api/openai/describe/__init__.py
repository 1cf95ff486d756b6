"""Operations and their parameters, declared once for decoder, documentation and /openapi.json."""
