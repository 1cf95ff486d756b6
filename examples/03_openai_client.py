"""Talk to a running server with the official `openai` client: one streamed chat answer, printed as it comes.

Start a server in one terminal and run this in another; the argument is the address the server prints:

    make serve
    .venv/bin/python examples/03_openai_client.py http://127.0.0.1:8000/v3

`openai` comes with `make setup-dev`; the server itself does not need it.
"""

from __future__ import annotations

import sys

from openai import OpenAI


def main(base_url: str) -> None:
    with OpenAI(base_url=base_url, api_key="unused") as client:  # the server asks for no key
        model = client.models.list().data[0].id
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
        print(f"{model}: ", end="")
        for chunk in stream:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
            if chunk.usage:  # the last chunk; it has no choices
                print(f"\n{chunk.usage.prompt_tokens} tokens in, {chunk.usage.completion_tokens} out")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v3")
