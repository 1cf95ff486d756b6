"""GET /llms.txt: what this server offers, as Markdown for language models and the people who ask them.

The operations are those of /openapi.json, in one line each (https://llmstxt.org, read 2026-11-22).
"""

from __future__ import annotations

from aiohttp import web

from ovserve.access import current_request
from ovserve.api.openai.describe.operation import Operation
from ovserve.http.openapi import OPERATIONS
from ovserve.serving.manager import Manager

HEAD = """# ovserve

> A model server for OpenVINO models. It speaks the APIs of OpenAI, Anthropic, Ollama, Azure and KServe.

- Base addresses: `/v3` and `/v1` for OpenAI's clients, `/` for Anthropic's and Ollama's.
- `model` is a name of the list below. A key, if the server asks for one, is `Authorization: Bearer KEY`.
- Unknown parameters are ignored and listed in the header `x-ovserve-ignored-params`.
- With `"stream": true` answers come as server-sent events; Ollama's paths send a line of JSON per piece.

"""
EXAMPLE = """
## Example

```
curl {base}/v3/chat/completions -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Say hello"}}]}}'
```
"""
MORE = """
## More

- [OpenAPI 3.1](/openapi.json): every path with its parameters
- [Capabilities](/v3/capabilities): what each model does with every parameter
- [Metrics](/metrics): Prometheus
"""


class LlmsTxt:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def get(self, request: web.Request) -> web.Response:
        may = current_request().caller.may_use
        models = [s for s in self._manager.servables if may(s.name)]
        lines = [f"- `{s.name}`, context {s.max_length or 'unknown'}" for s in models]
        text = HEAD + "## Models\n\n" + "\n".join(lines or ["None is served now."]) + "\n"
        if models:
            text += EXAMPLE.format(base=f"{request.scheme}://{request.host}", model=models[0].name)
        text += "\n## Operations\n\n" + "\n".join(map(_line, OPERATIONS)) + "\n" + MORE
        return web.Response(text=text, content_type="text/markdown")


def _line(operation: Operation) -> str:
    return f"- `{operation.method} {operation.path}`: {operation.summary}"
