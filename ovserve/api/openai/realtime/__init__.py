"""OpenAI's Realtime API: events, the state of a session, its rules. `calculators/realtime.py` does the I/O.

Source: https://github.com/openai/openai-python 3.57.0, its types of `openai.types.realtime`, read 2026-11-26
"""
