"""A scripted model: the file that a scripted engine (`kinds/text/worker/scripted.py`) answers from.

The script is one JSON object; all fields are optional, unknown ones are rejected:

    {"max_length": 4096,         context, in "tokens": words of the prompt, or its ids when it is a list
     "chat_template": "...",     a jinja template; default: "role: content" lines
     "eos_token": "</s>",
     "longest_token": 0,         bytes of a token at most, as reported by the engine; 0: unknown
     "vocab_size": 0,            ids that a request may name, as reported by the engine; 0: unknown
     "generation_config": {},
     "vision": false,            takes images: each is 16 tokens, and "[WIDTHxHEIGHT #RRGGBB]" in the prompt,
                                 with the colour of its first pixel
     "tokenize_seconds": 0,      time of every Tokenize and Detokenize
     "load_seconds": 0.5,        time until Ready
     "load": "ok",               or "fail", "exit", "hang" (until a file "go" is next to the script)
     "step_seconds": 0.02,       time of every step
     "cache_usage": 0.25,        part of the KV cache in use, reported while a request is running
     "grammars": [...],          how compiling grammars with a given text fails; others compile
     "variants": [...],          other speeds and answers of engines with other options
     "replies": [...]}

A variant applies when the engine was asked for with all of its `options`, which are properties or fields of
TextSpec: {"options": {"NUM_STREAMS": "2"}, "step_seconds": 0.1, "load": "fail", "text": "Hi."}. All but
options are optional, and the last variant that applies wins.

With `engine: "paged"` each piece has log-probabilities: it is the likeliest token if the request is greedy,
else the third, and the others are made up.

A constraint is accepted and not enforced: the script is the answer. How a grammar fails in the trial process,
all but `match` optional: {"match": "banana", "refuse": "no such type", "seconds": 60,
"cpu_seconds": 60, "take_bytes": 1000000, "exit": true}.

A reply is chosen by the first `match` that occurs in the prompt ("" matches all; no reply: "ok."):

    {"match": "weather",
     "text": "It is sunny.",     cut into words, one per step; or
     "pieces": ["It", " is"],    one per step; a piece is a token; or
     "echo": true,               the prompt itself, word by word
     "repeat": 1,                how many times the pieces are sent (huge answers; 0: endless)
     "take_bytes": 0,            of memory, which is kept
     "burst": 1,                 pieces per step
     "finish": "stop",           or "length"
     "step_seconds": 60,         while this reply runs, a step takes at least this long
     "wait_steps": 0,            steps before the first piece in which the request makes no progress
     "prefill_steps": 0,         the same, but the cache fills, as with a long prompt
     "cached_tokens": 0,         prompt tokens reported as found in the prefix cache; null: not reported
     "refuse": "resource_exhausted",   ends with this kind of Failed instead of text; not "unavailable",
                                 which the client takes for the last message of a dying engine
     "raise_in_step": 3,         the third step of this reply raises: the engine dies as a real one would
     "exit_in_step": 3}          the process ends at once, without a message
"""

from __future__ import annotations

import msgspec

from ovserve.engine.protocol.specs import TextSpec
from ovserve.errors import LoadError

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    match: str = ""
    text: str | None = None
    pieces: tuple[str, ...] | None = None
    echo: bool = False
    repeat: int = 1
    take_bytes: int = 0
    burst: int = 1
    finish: str = "stop"
    step_seconds: float = 0.0
    wait_steps: int = 0
    prefill_steps: int = 0
    cached_tokens: int | None = None
    refuse: str = ""
    raise_in_step: int = 0
    exit_in_step: int = 0


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    match: str
    refuse: str = ""
    seconds: float = 0.0  # without CPU time
    cpu_seconds: float = 0.0
    take_bytes: int = 0
    exit: bool = False


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    options: dict[str, str | int | float | bool]
    step_seconds: float | None = None
    load: str | None = None
    text: str | None = None

    def counts(self, spec: TextSpec) -> bool:
        options = msgspec.structs.asdict(spec) | msgspec.json.decode(spec.properties)
        return all(options.get(name) == value for name, value in self.options.items())


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max_length: int | None = 4096
    chat_template: str = TEMPLATE
    vision: bool = False
    eos_token: str = "</s>"
    longest_token: int = 0
    vocab_size: int = 0
    generation_config: dict[str, object] = {}
    load: str = "ok"
    load_seconds: float = 0.0
    step_seconds: float = 0.0
    cache_usage: float = 0.0
    tokenize_seconds: float = 0.0
    grammars: tuple[Grammar, ...] = ()
    variants: tuple[Variant, ...] = ()
    replies: tuple[Reply, ...] = ()

    def varied(self, spec: TextSpec) -> Script:
        script = self
        for variant in self.variants:
            if variant.counts(spec):
                changed = {n: v for n in ("step_seconds", "load") if (v := getattr(variant, n)) is not None}
                if variant.text is not None:
                    changed["replies"] = (Reply(text=variant.text),)
                script = msgspec.structs.replace(script, **changed)
        return script


def read_script(path: str) -> Script:
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Script)
    except (OSError, msgspec.MsgspecError) as error:
        raise LoadError(str(error), file=path) from error
