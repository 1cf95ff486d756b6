"""The engine process and the server's handle on it.

`client.EngineClient` is all the rest of the server uses. The child runs `worker`, the only code that
imports `genai`, the only package that imports OpenVINO.
"""
