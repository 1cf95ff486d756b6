"""What the console is shown with: graphs of one node, five and fifteen over a scripted model that reasons and calls tools."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from tests import encoders, images, speech, voices
from tests.conftest import ROOT, script_graph

LONG_NAME = "a-model-with-a-very-long-name-that-somebody-gave-it-on-a-friday-afternoon-2026-11-22"
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %} calls {{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
    "\n{% endfor %}{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{# <tool_call></tool_call><think></think> #}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
STORY = "The keeper climbed the stairs again, and the lamp turned slowly over the dark water. "
MARKDOWN = """Here is what you asked for.

```python
def reversed_list(items: list[int]) -> list[int]:
    # a copy, from the end
    return items[::-1]
```

| input | output |
|---|---|
| `[1, 2, 3]` | `[3, 2, 1]` |
| `[]` | `[]` |

1. It keeps the **original** list.
2. It works for *any* sequence.
"""
HOSTILE = 'Hi <img src=x onerror="window.hacked=1"><script>window.hacked=1</script> [x](javascript:window.hacked=1) ![p](http://203.0.113.5/x.png) <b onclick="window.hacked=1">bold</b>'
REPLIES: list[dict[str, Any]] = [
    {"match": "fail", "refuse": "resource_exhausted"},
    {"match": "<|tool|>", "text": "It is sunny in Oslo, and it will stay so until the evening."},
    {
        "match": "tools:",
        "text": f"<think>\nThe user wants the weather, so I call the tool.\n</think>\n{CALL}",
    },
    {"match": "think hard", "text": f"<think>\n{STORY * 2}\n</think>\nForty-two."},
    {"match": "markdown", "text": f"<think>\nA short function is enough.\n</think>\n{MARKDOWN}"},
    {"match": "hostile", "text": HOSTILE},
    {"match": "endless prompt", "text": "Read.", "prefill_steps": 400, "step_seconds": 0.1},
    {"match": "long prompt", "text": "Read.", "prefill_steps": 40, "step_seconds": 0.1, "cached_tokens": 0},
    {"match": "five thousand", "text": f"{STORY}\n\n", "repeat": 333, "burst": 8, "step_seconds": 0.001},
    {"match": "endless", "text": STORY, "repeat": 0},
    {
        "match": "two megabytes",
        "text": "0123456789" * 16 + " ",
        "repeat": 13000,
        "burst": 500,
        "step_seconds": 0.001,
    },
    {"match": "deep quotes", "text": "> " * 15000 + "end", "burst": 5000, "step_seconds": 0.001},
    {"match": "", "text": "Hello there. How can I help?", "cached_tokens": 3},
]


def script(**more: Any) -> str:
    return json.dumps(
        {"chat_template": TEMPLATE, "replies": REPLIES, "step_seconds": 0.01, "max_length": 32768} | more
    )


def five_nodes(directory: Path, **more: Any) -> Path:
    """The default graph: five nodes, a back edge, a side packet, two sync sets."""
    return script_graph(directory, script(**more))


def one_node(directory: Path) -> Path:
    shutil.copytree(ROOT / "graphs/single_node", directory)
    file = directory / "graph.pbtxt"
    text = re.sub(r'models_path: "[^"]*"(\s*\w+: \w+)*', 'models_path: "model.script.json"', file.read_text())
    file.write_text(text)
    (directory / "model.script.json").write_text(script())
    return directory


def fifteen_nodes(directory: Path) -> Path:
    """Ten nodes that pass packets on stand between the parser and the writer, in two chains that fork and join;
    one of them runs on threads."""
    five_nodes(directory)
    file = directory / "graph.pbtxt"
    text = file.read_text().replace('input_stream: "PARSED:parsed"', 'input_stream: "PARSED:joined"')
    chains = "".join(
        _pass(f"{side}Filter{i}", f"{side.lower()}_{i - 1}" if i else "parsed", f"{side.lower()}_{i}")
        for side in ("Left", "Right")
        for i in range(5)
    )
    join = chains.replace('output_stream: "A:left_4"', 'output_stream: "A:joined"')
    file.write_text(text + join.replace('name: "Right', 'executor: "filters"\n  name: "Right') + EXECUTOR)
    return directory


EXECUTOR = (
    'executor {\n  name: "filters"\n  type: "ThreadPoolExecutor"\n'
    "  options { [mediapipe.ThreadPoolExecutorOptions.ext] { num_threads: 2 } }\n}\n"
)


def _pass(name: str, source: str, target: str) -> str:
    return (
        f'\nnode {{\n  name: "{name}"\n  calculator: "PassThroughCalculator"\n'
        f'  input_stream: "A:{source}"\n  output_stream: "A:{target}"\n}}\n'
    )


def stage(directory: Path) -> Path:
    """A directory of graphs for --graphs_dir; one of them cannot be loaded."""
    five_nodes(directory / "scripted")
    one_node(directory / "one-node")
    fifteen_nodes(directory / "fifteen-nodes")
    five_nodes(directory / LONG_NAME)
    five_nodes(directory / "no-chat", chat_template="")
    broken = five_nodes(directory / "broken") / "graph.pbtxt"
    broken.write_text(broken.read_text().replace("ResponseWriterCalculator", "ResponseWritterCalculator"))
    return directory


def stage_kinds(directory: Path, plain: Path, image: Path) -> Path:
    """A directory with a tiny real model of each kind that does not chat. `plain` and `image` hold models."""
    for name, model, kind in (("embed", "mpnet", "Embeddings"), ("rank", "bert", "Rerank")):
        encoders.tiny(model, directory / name)
        (directory / name / "graph.pbtxt").write_text(encoders.graph("./", kind=kind))
    (directory / "draw").mkdir()
    (directory / "draw/graph.pbtxt").write_text(
        images.graph(str(image), 'default_resolution: "64x64"', "default_num_inference_steps: 4")
    )
    voices.tiny_voice(directory / "say")
    (directory / "say/graph.pbtxt").write_text(voices.voice_graph("./"))
    speech.tiny_whisper(directory / "hear")
    (directory / "hear/graph.pbtxt").write_text(speech.graph("./"))
    for name in ("add", "passthrough_string"):
        (directory / name).symlink_to(plain / name)
    return directory
