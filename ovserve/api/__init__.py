"""Wire formats of clients, a package per API style.

- `openai`: chat completions, completions, Responses, tokens
- `anthropic`: Messages
- `azure`: model inference and Azure OpenAI
- `kserve`: the Open Inference Protocol
"""

LATEST = ":latest"  # Ollama's tag of a model that has none
