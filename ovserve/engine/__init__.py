"""The engine process and the server's handle on it.

`client.EngineClient` is all the rest of the server uses. The child runs `worker`, the only code that
imports `genai`, which is the only file that imports OpenVINO.
"""
