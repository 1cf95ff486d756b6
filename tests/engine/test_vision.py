"""The real engine with a model that sees: what it says depends on every image and its place, prompts are
counted with their images, and what the library dies of does not reach it."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovserve.engine.protocol.messages import Add
from ovserve.engine.protocol.specs import StatefulTextSpec, TextSpec
from ovserve.errors import ContextLengthExceeded, InvalidArgument, LoadError
from ovserve.kinds.text.worker.genai import GenAIEngine, StatefulEngine
from ovserve.llm.images import Image, tag
from ovserve.llm.request import Sampling
from scripts.vision_model import IMAGE_TOKENS, make
from scripts.vision_parts import CONTEXT
from tests.engine.real import EXACT, Queued, Result, run

# Of bytes, with the special tokens of LLaVA, and `<s>` before each text, as openvino_tokenizers 2026.4.1 writes it.
TOKENIZER = Path(__file__).parents[1] / "vectors/begin_token/tokenizer.json.gz"


@pytest.fixture(scope="module")
def engine(vision_model: Path) -> GenAIEngine:
    return GenAIEngine(TextSpec(str(vision_model), max_num_batched_tokens=16, enable_prefix_caching=True))


ids: Iterator[int] = iter(range(1, 10_000))


def image(seed: int, width: int = 80, height: int = 60) -> Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image(width, height, pixels.tobytes())


def add(engine: GenAIEngine, prompt: str, *images: Image, **sampling: Any) -> tuple[int, int]:
    """Its id, and the tokens of its prompt."""
    id_ = next(ids)
    wanted = Sampling(**{"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, **sampling})
    return id_, engine.add(Add(id_, prompt, False, wanted, images)).prompt_tokens


def generate(engine: GenAIEngine, prompt: str, *images: Image, **sampling: Any) -> Result:
    id_, _ = add(engine, prompt, *images, **sampling)
    return run(engine)[id_]


def test_it_says_that_it_sees(engine: GenAIEngine) -> None:
    assert engine.facts.vision
    assert engine.facts.image_markers == ("<image>",)
    assert engine.facts.max_length == CONTEXT


def test_the_answer_depends_on_the_image_and_its_place(engine: GenAIEngine) -> None:
    cat, dog = image(1), image(2)
    prompts = [
        ("hello", ()),
        (f"{tag(0)}hello", (cat,)),
        (f"{tag(0)}hello", (dog,)),
        (f"hello{tag(0)}", (cat,)),
        (f"{tag(0)} and {tag(1)}", (cat, dog)),
        (f"{tag(0)} and {tag(1)}", (dog, cat)),
    ]
    answers = [generate(engine, prompt, *images).text for prompt, images in prompts]
    assert len(set(answers)) == len(prompts)
    assert [generate(engine, prompt, *images).text for prompt, images in prompts] == answers


def test_requests_with_and_without_images_run_side_by_side(engine: GenAIEngine) -> None:
    cat = image(1)
    alone = [generate(engine, "hello").text, generate(engine, f"{tag(0)}hello", cat).text]
    both = [add(engine, "hello")[0], add(engine, f"{tag(0)}hello", cat)[0]]
    results = run(engine)
    assert [results[id_].text for id_ in both] == alone


@pytest.mark.parametrize(
    ("prompt", "images"),
    [("hello", 0), (f"{tag(0)}hello", 1), (f"a{tag(0)}b\n{tag(1)}", 2), (f"{tag(0)}{tag(1)}{tag(2)}", 3)],
)
def test_prompt_tokens_are_the_librarys(engine: GenAIEngine, prompt: str, images: int) -> None:
    """Its own count is known once the answer is complete."""
    id_, counted = add(engine, prompt, *[image(n, 80 + n, 60) for n in range(images)])
    handle = engine._live[id_].handle
    run(engine)
    assert handle.get_perf_metrics().get_num_input_tokens() == counted
    assert counted == len(prompt) + images * (IMAGE_TOKENS - len(tag(0)))


@pytest.mark.parametrize(("kind", "spec"), [(GenAIEngine, TextSpec), (StatefulEngine, StatefulTextSpec)])
def test_the_token_before_a_text_is_there_once(tmp_path: Path, kind: Any, spec: Any) -> None:
    """A chat template writes it, and the library adds it to every text."""
    make(tmp_path)
    for name, content in json.loads(gzip.decompress(TOKENIZER.read_bytes())).items():
        (tmp_path / name).write_bytes(bytes.fromhex(content))
    engine = kind(spec(str(tmp_path), properties=EXACT))
    for prompt, images in (("hello", ()), (f"{tag(0)}hello", (image(1),)), ("", ())):
        written, counted = add(engine, f"<s>{prompt}", *images)
        text = run(engine)[written].text
        assert counted == 1 + len(prompt) + len(images) * (IMAGE_TOKENS - len(tag(0)))
        assert generate(engine, prompt, *images).text == text
        assert generate(engine, f"<s><s>{prompt}", *images).text != text


def steps_of(engine: GenAIEngine, prompt: str, *images: Image) -> int:
    add(engine, prompt, *images, max_tokens=1)
    steps = 0
    while engine.busy:
        engine.step()
        engine.collect()
        steps += 1
    return steps


def test_an_image_seen_before_is_in_the_prefix_cache(engine: GenAIEngine) -> None:
    """With 16 tokens a step; another image in the same place is not taken for it."""
    turn = f"{tag(0)}{'what is in this picture? ' * 8}"
    first = steps_of(engine, turn, image(7))
    assert steps_of(engine, f"{turn} And now?", image(7)) <= first // 3
    assert steps_of(engine, turn, image(8)) == first


def test_a_prompt_with_images_that_is_too_long_is_refused(engine: GenAIEngine) -> None:
    many = [image(n) for n in range(8)]
    tags = "".join(map(tag, range(8)))
    room = CONTEXT - 8 * IMAGE_TOKENS
    id_, counted = add(engine, tags + "a" * (room - 1), *many, max_tokens=1)
    assert counted == CONTEXT - 1
    engine.abort(id_)
    run(engine)
    with pytest.raises(ContextLengthExceeded, match=f"The prompt has {CONTEXT} tokens"):
        add(engine, tags + "a" * room, *many)
    with pytest.raises(ContextLengthExceeded, match="tokens"):
        add(engine, "a" * (2 * CONTEXT))


def test_a_prompt_larger_than_the_cache_is_refused(vision_model: Path) -> None:
    small = GenAIEngine(TextSpec(str(vision_model), num_kv_blocks=3))
    assert (small.facts.max_length, small.facts.cache_tokens) == (96, 96)
    with pytest.raises(ContextLengthExceeded, match="96 tokens"):
        add(small, tag(0) + "a" * 120, image(1))
    assert generate(small, f"{tag(0)}hello", image(1), max_tokens=3).tokens == 3


def test_more_requests_with_images_than_a_small_cache_has_room_for(vision_model: Path) -> None:
    """Each answer is that of a request alone, and nothing of a cancelled prompt is found by another one."""
    spec = TextSpec(
        str(vision_model),
        num_kv_blocks=6,
        max_num_batched_tokens=16,
        enable_prefix_caching=True,
        properties=EXACT,
    )
    engine, chance = GenAIEngine(spec), random.Random(3)
    alone = GenAIEngine(TextSpec(str(vision_model), properties=EXACT))
    prompts = {
        id_: (f"{tag(0)}{'what is it? ' * (id_ % 4)}", image(id_ % 3)) if id_ % 3 else (f"hello {id_ % 5}",)
        for id_ in range(30)
    }
    queued = Queued(engine)
    for id_, (prompt, *images) in prompts.items():
        queued.add(id_, prompt, images=tuple(images), max_tokens=12, ignore_eos=True)
        queued.step()
        if chance.random() < 0.2:
            queued.abort(id_)
    results = queued.run()
    assert 15 < len(results) < 30
    assert queued.most > 1
    for id_, result in results.items():
        assert result.text == generate(alone, *prompts[id_]).text, prompts[id_][0]


def test_how_it_may_be_sampled(engine: GenAIEngine) -> None:
    cat, prompt = image(1), f"{tag(0)}hello"
    greedy = generate(engine, prompt, cat)
    assert len(generate(engine, prompt, cat, logprobs=True).logprobs) == greedy.tokens
    assert generate(engine, prompt, cat, temperature=1.0, seed=1, top_k=5, top_p=0.9).tokens == 12
    assert generate(engine, prompt, cat, repetition_penalty=1.5, presence_penalty=1.0).text != greedy.text
    id_, _ = add(engine, prompt, cat, beams=3, n=2)
    assert run_beams(engine, id_) == [0, 1]


def run_beams(engine: GenAIEngine, id_: int) -> list[int]:
    found = []
    while engine.busy:
        engine.step()
        found += [item.index for item in engine.collect() if item.id == id_]  # type: ignore[union-attr]
    return found


def test_an_abort_while_an_image_is_worked_on(engine: GenAIEngine) -> None:
    id_, _ = add(engine, f"{tag(0)}{'a' * 200}", image(1))
    engine.step()
    engine.abort(id_)
    while engine.busy:
        engine.step()
        assert engine.collect() == []
    assert generate(engine, f"{tag(0)}hello", image(1)).tokens == 12


# ---- what the library dies of


def test_token_ids_and_echo_do_not_reach_it(engine: GenAIEngine) -> None:
    for prompt, more in (((1, 2, 3), {}), ("hello", {"echo": True})):
        with pytest.raises(InvalidArgument, match="no token ids, and gives no echo"):
            engine.add(Add(next(ids), prompt, False, Sampling(max_tokens=3, **more)))
    assert generate(engine, "hello").tokens == 12


@pytest.mark.parametrize(
    ("prompt", "images"),
    [
        ("<image>hello", 0),
        (f"{tag(0)}hello <image>", 1),
        (f"{tag(5)}hello", 1),
        ("hello", 1),
        (f"{tag(0)}", 0),
    ],
)
def test_what_was_not_checked_before_hurts_nobody(engine: GenAIEngine, prompt: str, images: int) -> None:
    """The server lets none of these through, and the engine asks once more."""
    neighbour, _ = add(engine, "hello")
    with pytest.raises(InvalidArgument):
        add(engine, prompt, *[image(1)] * images)
    assert run(engine)[neighbour].tokens == 12


@pytest.mark.parametrize(("width", "height"), [(32, 32), (1600, 32), (32, 1600), (2048, 768), (33, 57)])
def test_all_sizes_that_the_server_sends(engine: GenAIEngine, width: int, height: int) -> None:
    assert generate(engine, f"{tag(0)}hello", image(1, width, height)).tokens == 12


KILLERS = """
import sys, openvino, openvino_genai as g
pipeline = g.ContinuousBatchingPipeline(sys.argv[1], g.SchedulerConfig(), "CPU")
config = g.GenerationConfig()
config.max_new_tokens, config.apply_chat_template = 3, False
if sys.argv[2] == "echo":
    config.echo = True
    handle = pipeline.add_request(1, "hello", [], config)
else:
    ids = openvino.Tensor(openvino.Type.i64, openvino.Shape([1, 3]))
    ids.data[:] = 7
    pipeline.generate(["hello"], images=[[]], generation_config=[config])
    handle = pipeline.add_request(2, ids, config)
tokens = 0
for _ in range(20):
    pipeline.step()
    while handle.can_read():
        tokens += sum(len(part.generated_ids) for part in handle.read().values())
    assert tokens < 20
assert handle.get_status() == g.GenerationStatus.FINISHED and tokens
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["echo", "ids"])
def test_the_library_still_dies_of_them(vision_model: Path, what: str) -> None:
    """Else the refusals above have lost their reason."""
    done = subprocess.run(
        [sys.executable, "-c", KILLERS, str(vision_model), what], capture_output=True, timeout=230
    )
    assert done.returncode != 0


# ---- loading


@pytest.mark.parametrize("missing", ["openvino_language_model.xml", "openvino_vision_embeddings_model.xml"])
def test_a_vision_model_that_cannot_see_does_not_load(
    vision_model: Path, tmp_path: Path, missing: str
) -> None:
    broken = tmp_path / "model"
    shutil.copytree(vision_model, broken)
    (broken / missing).unlink()
    with pytest.raises(LoadError):
        GenAIEngine(TextSpec(str(broken)))


def test_prompt_lookup_counts_images_as_nothing_to_find(vision_model: Path) -> None:
    engine = GenAIEngine(TextSpec(str(vision_model), prompt_lookup=True))
    result = generate(engine, f"{tag(0)}hello hello hello", image(1), max_tokens=40)
    assert result.tokens == 40
    assert 0 <= result.accepted <= result.drafted
