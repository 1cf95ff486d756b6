"""Checks of the answers of OVMS's graphs, with inputs that distinguish their models.

Large models are stood in for by small ones, so the checks of these say what a graph does with any model.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scripts.acceptance_python import Check, outcome, same, sums, two_outputs
from tests.inference.conftest import Site
from tests.speech import RECORDING

__all__ = ["CHECKS", "Check", "outcome"]
Floats = NDArray[np.float32]
PROMPT = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 30}
TEXTS = ["The ship left the harbour.", "The ship left the port.", "Prices rise."]


def post(site: Site, path: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(f"{site.url}/v3/{path}", json={"temperature": 0, **body}, timeout=300)
    if answer.status_code != 200:
        raise ValueError(answer.text)
    return answer


def tensors(compute: Callable[..., Floats]) -> Check:
    """Infer over KServe's REST, each element of each input another number, and compare all outputs with `compute`."""

    def check(site: Site, name: str) -> str:
        url = f"{site.url}/v2/models/{quote(name, safe='')}"
        inputs, arrays = [], []
        for number, end in enumerate(httpx.get(url).json()["inputs"], 1):
            if end["datatype"] == "INVALID":  # it passes anything
                end |= {"datatype": "FP32", "shape": [-1, -1]}
            shape = [size if size > 0 else 10 - 8 * (axis == 0) for axis, size in enumerate(end["shape"])]
            arrays.append((np.arange(np.prod(shape)) + 100 * number + 0.5).reshape(shape).astype(np.float32))
            inputs.append({**end, "shape": shape, "data": arrays[-1].ravel().tolist()})
        answer = httpx.post(f"{url}/infer", json={"inputs": inputs})
        if answer.status_code != 200:
            return answer.text
        wanted = compute(*arrays)
        for output in answer.json()["outputs"]:
            if output["shape"] != [*wanted.shape] or output["data"] != wanted.ravel().tolist():
                return f"{output['name']} is {output['data'][:20]}, instead of {wanted.ravel().tolist()[:20]}"
        return ""

    return check


def strings(site: Site, name: str) -> str:
    given = {"name": "my_name", "datatype": "BYTES", "shape": [2], "data": ["left", "right"]}
    answer = site.infer(name, given)
    return (
        ""
        if answer.status_code == 200 and answer.json()["outputs"][0]["data"] == given["data"]
        else answer.text
    )


def chats(site: Site, name: str) -> str:
    content = post(site, "chat/completions", {"model": name, **PROMPT}).json()["choices"][0]["message"][
        "content"
    ]
    return "" if "Paris" in content else f"{content!r}"


def sees(site: Site, name: str) -> str:
    """Two pictures have two answers, and the same one has the same."""
    contents = []
    for colour in ("red", "blue", "red"):
        file = io.BytesIO()
        Image.new("RGB", (64, 64), colour).save(file, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        content = [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": url}},
        ]
        body = {"model": name, "messages": [{"role": "user", "content": content}], "max_tokens": 20}
        contents.append(post(site, "chat/completions", body).json()["choices"][0]["message"]["content"])
    return "" if contents[0] == contents[2] != contents[1] else f"{contents}"


def embeds(*, normalized: bool) -> Check:
    def check(site: Site, name: str) -> str:
        rows = post(site, "embeddings", {"model": name, "input": TEXTS}).json()["data"]
        vectors = np.array([row["embedding"] for row in rows], np.float32)
        lengths = np.linalg.norm(vectors, axis=1)
        if np.allclose(lengths, 1, atol=1e-3) != normalized:
            return f"lengths {lengths}"
        near, far = (float(vectors[0] @ vectors[i] / lengths[0] / lengths[i]) for i in (1, 2))
        return "" if near > far + 0.05 else f"cosines {near} and {far}"

    return check


def ranks(site: Site, name: str) -> str:
    """Each document has a score of its own, whatever its place."""
    scores = []
    for documents in (TEXTS, TEXTS[::-1]):
        results = post(site, "rerank", {"model": name, "query": "ships", "documents": documents}).json()[
            "results"
        ]
        if results != sorted(results, key=lambda one: -one["relevance_score"]):
            return f"not by score: {results}"
        scores.append({documents[one["index"]]: round(one["relevance_score"], 4) for one in results})
    return "" if scores[0] == scores[1] and len({*scores[0].values()}) == len(TEXTS) else f"{scores}"


def hears(*, words: bool) -> Check:
    def check(site: Site, name: str) -> str:
        answer = httpx.post(
            f"{site.url}/v3/audio/transcriptions",
            data={
                "model": name,
                "response_format": "verbose_json",
                "timestamp_granularities[]": "word" if words else "segment",
            },
            files={"file": RECORDING.read_bytes()},
            timeout=300,
        )
        if words:
            right = answer.status_code == 200 and "words" in answer.json()
        else:
            right = answer.status_code == 200 and bool(answer.json()["text"])
        return "" if right else answer.text

    return check


def speaks(*, fastest: float) -> Check:
    """Twice as fast is shorter, and what is over the graph's bound is refused."""

    def check(site: Site, name: str) -> str:
        sizes = []
        for speed in (1.0, fastest):
            body = {
                "model": name,
                "input": "The ship left.",
                "voice": "af_one",
                "response_format": "pcm",
                "speed": speed,
            }
            sizes.append(len(post(site, "audio/speech", body).content))
        if not 0 < sizes[1] < sizes[0]:
            return f"sizes {sizes}"
        answer = httpx.post(f"{site.url}/v3/audio/speech", json={**body, "speed": fastest + 0.1}, timeout=300)
        return (
            ""
            if answer.status_code == 400 and "speed" in answer.text
            else f"{answer.status_code} {answer.text[:200]}"
        )

    return check


CHECKS: dict[str, Check] = {
    "x + 1": tensors(lambda x: x + 1),
    "x + y": tensors(lambda x, y: x + y),
    "x + 1 + y": tensors(lambda x, y: x + 1 + y),
    "x": tensors(lambda x: x),
    "2 * sums": tensors(lambda x: 2 * x.sum((2, 3))),
    "strings": strings,
    "python: x + y": sums,
    "python: x": same,
    "python: fails": two_outputs,
    "chats": chats,
    "sees": sees,
    "embeds": embeds(normalized=True),
    "embeds, not normalized": embeds(normalized=False),
    "ranks": ranks,
    "hears": hears(words=False),
    "hears words": hears(words=True),
    "speaks": speaks(fastest=4.0),
    "speaks, up to 2": speaks(fastest=2.0),
}
