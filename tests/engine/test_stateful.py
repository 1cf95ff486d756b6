"""The engine that answers one at a time, on the real default model, in this process; and what each of its
refusals spares the client, shown on the library itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openvino
import openvino_genai as ov_genai
import pytest

from ovserve.engine.protocol.messages import Add, Compiled
from ovserve.engine.protocol.specs import StatefulTextSpec
from ovserve.errors import ContextLengthExceeded, Internal, InvalidArgument, LoadError
from ovserve.kinds.text.worker.genai import StatefulEngine
from ovserve.kinds.text.worker.genai.stateful import _Run, _Streamer, lengths
from ovserve.llm.grammar import constraint as c
from ovserve.llm.request import Sampling
from tests.engine.real import FRANCE, STORY, add, generate, run

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def engine(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> StatefulEngine:
    directory = tmp_path_factory.mktemp("stateful") / "model"
    without = shutil.ignore_patterns("config.json", "*.gguf")
    shutil.copytree(model_path, directory, copy_function=os.symlink, ignore=without)
    (directory / "config.json").write_text('{"max_position_embeddings": 2048}')
    return StatefulEngine(StatefulTextSpec(str(directory)))


@pytest.fixture(autouse=True)
def nothing_is_left_behind(engine: StatefulEngine) -> Iterator[None]:
    yield
    for id_ in engine.live():
        engine.abort(id_)
    while engine.busy:
        engine.step()
        engine.collect()


def bare(engine: StatefulEngine, streamer: Any = None, **settings: Any) -> Any:
    """What the library answers without our rules."""
    config = ov_genai.GenerationConfig()
    config.apply_chat_template = False
    config.eos_token_id, config.stop_token_ids = 2, {2}
    config.max_new_tokens = 20
    for name, value in settings.items():
        setattr(config, name, value)
    ids = engine.text._tokenizer.encode(FRANCE, add_special_tokens=False).input_ids
    return engine._pipeline.generate(ids, config, streamer)


def begun(engine: StatefulEngine) -> _Run:
    """Step until the answer under way has its first token."""
    while True:
        assert engine._running is not None
        engine.step()
        if engine._running._new_ids:
            return engine._running


def test_text_comes_token_by_token_and_counts_include_the_end_token(engine: StatefulEngine) -> None:
    result = generate(engine, FRANCE)
    assert "Paris" in result.text
    assert "<|im_end|>" not in result.text
    assert result.finish == "stop"
    assert len([text for text in result.deltas if text]) > 5
    [ids] = bare(engine).tokens
    assert result.tokens == len(ids)
    assert ids[-1] == 2


def test_the_answer_ends_at_its_bound_with_its_last_word(engine: StatefulEngine) -> None:
    result = generate(engine, FRANCE, max_tokens=5)
    assert (result.finish, result.tokens) == ("length", 5)
    assert result.deltas[-1]
    assert generate(engine, FRANCE, max_tokens=1).tokens == 1
    none = generate(engine, FRANCE, max_tokens=0)
    assert (none.text, none.tokens, none.finish) == ("", 0, "length")


def test_each_request_waits_for_the_one_before_it(engine: StatefulEngine) -> None:
    alone = generate(engine, FRANCE, max_tokens=4).text
    for id_ in (1, 2, 3):
        accepted = add(engine, id_, FRANCE, max_tokens=4)
        assert (accepted.prompt_tokens, accepted.max_tokens) == (16, 4)
    order: list[int] = []
    while engine.busy:
        assert engine.usage().scheduled == 1
        engine.step()
        order += [word.id for word in engine.collect()]
    assert order == sorted(order)
    assert set(order) == {1, 2, 3}
    add(engine, 4, FRANCE, max_tokens=4)
    add(engine, 5, FRANCE, max_tokens=4)
    assert {id_: result.text for id_, result in run(engine).items()} == {4: alone, 5: alone}


def test_a_stop_string_ends_the_answer_and_frees_the_engine(engine: StatefulEngine) -> None:
    assert generate(engine, FRANCE, stop=("apit",)).text == "The c"
    result = generate(engine, FRANCE, stop_token_ids=(7042,), ignore_eos=True)
    assert (result.text, result.finish) == ("The capital of France is", "stop")


def test_cancelling_takes_one_token(engine: StatefulEngine) -> None:
    add(engine, 1, STORY, max_tokens=4000, ignore_eos=True)
    under_way = begun(engine)
    engine.abort(1)
    before = len(under_way._new_ids)
    while engine.busy:
        engine.step()
        assert engine.collect() == []
    assert len(under_way._new_ids) <= before + 2  # one may have been on its way, the next is the last


def test_who_waits_can_leave(engine: StatefulEngine) -> None:
    add(engine, 1, FRANCE, max_tokens=2)
    add(engine, 2, FRANCE)
    engine.abort(2)
    engine.abort(2)
    engine.abort(99)
    assert set(run(engine)) == {1}


def test_a_long_prompt_does_not_keep_questions_and_aborts_waiting(engine: StatefulEngine) -> None:
    add(engine, 1, (28,) * 500, max_tokens=1)
    engine.step()
    assert engine.collect() == []
    assert engine.busy
    assert engine.text.tokenize(("Paris",), False)
    engine.abort(1)


def test_how_much_of_a_prompt_is_unread_is_estimated(engine: StatefulEngine) -> None:
    prompt = (28,) * 300
    for id_ in (1, 2):
        add(engine, id_, prompt, max_tokens=1)
    assert dict(engine.usage().to_prefill)[2] == 300, "it waits"
    seen: list[int] = []
    while engine.busy:
        seen += [tokens for id_, tokens in engine.usage().to_prefill if id_ == 2]
        engine.step()
        engine.collect()
    assert seen == sorted(seen, reverse=True)
    assert 0 < seen[-1] < 300, "the first has shown how long it takes"
    assert engine.usage().to_prefill == ()


def test_sampling_reaches_the_library(engine: StatefulEngine) -> None:
    drawn = generate(engine, STORY, temperature=1.0, seed=3, max_tokens=8).text
    assert generate(engine, STORY, temperature=1.0, seed=3, max_tokens=8).text == drawn
    assert generate(engine, STORY, temperature=1.0, seed=4, max_tokens=8).text != drawn
    assert generate(engine, FRANCE, min_tokens=20).tokens >= 20


def test_what_does_not_fit_is_refused(engine: StatefulEngine) -> None:
    with pytest.raises(ContextLengthExceeded, match="2048 tokens.*has 2050 tokens"):
        add(engine, 1, (28,) * 2050)
    with pytest.raises(InvalidArgument, match="the prompt is empty"):
        add(engine, 1, "")


class TestGrammars:
    FORM = c.regex("[0-9]{3}")

    def test_they_are_enforced(self, engine: StatefulEngine) -> None:
        constraint = c.constrain(self.FORM, "x")
        with pytest.raises(Internal, match="not compiled"):
            add(engine, 1, FRANCE, constraint=constraint)
        engine.grammars.compile(-1, c.structural_tag(constraint.format))
        while not (words := engine.grammars.compiled()):
            time.sleep(0.001)
        assert words == [Compiled(-1)]
        for drawn in ({}, {"temperature": 1.0, "seed": 5}):
            text = generate(engine, FRANCE, constraint=constraint, **drawn).text
            assert text.isdigit()
            assert len(text) == 3


class TestRefused:
    @pytest.mark.parametrize(
        ("sampling", "param"),
        [({"beams": 2}, "best_of"), ({"logprobs": True}, "logprobs"), ({"echo": True}, "echo")],
    )
    def test_by_name(self, engine: StatefulEngine, sampling: dict[str, Any], param: str) -> None:
        with pytest.raises(InvalidArgument, match="not possible with the stateful pipeline") as caught:
            add(engine, 1, FRANCE, **sampling)
        assert caught.value.param == param

    def test_beams_since_none_can_be_streamed_or_cancelled(self, engine: StatefulEngine) -> None:
        assert len(bare(engine, num_beams=2, num_return_sequences=2).tokens) == 2
        with pytest.raises(RuntimeError, match="streaming is possible only with batch size=1"):
            bare(engine, _Streamer(), num_beams=2)

    def test_logprobs_since_there_are_none(self, engine: StatefulEngine) -> None:
        answer = bare(engine, logprobs=1)
        assert not [name for name in dir(answer) if "prob" in name]
        assert len(answer.scores) == 1 < len(answer.tokens[0])

    def test_echo_since_the_library_raises(self, engine: StatefulEngine) -> None:
        with pytest.raises(RuntimeError, match="Echo is not supported"):
            bare(engine, echo=True)

    def test_several_choices_of_one_call_but_not_several_calls(self, engine: StatefulEngine) -> None:
        """So `engine/client/split.py` makes a request of each choice here too."""
        with pytest.raises(RuntimeError, match="streaming is possible only with batch size=1"):
            bare(engine, _Streamer(), do_sample=True, num_return_sequences=2)


def test_what_the_library_raises_ends_the_engine(
    engine: StatefulEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`worker.py` then says so to all who wait, and the server starts another process."""
    monkeypatch.setattr("ovserve.engine.protocol.admission.refuse_combination", lambda mode, sampling: None)
    add(engine, 1, FRANCE, echo=True)
    with pytest.raises(RuntimeError, match="Echo is not supported"):
        run(engine)
    engine._running = None
    engine._live.clear()


RAISING = """
import os, sys, openvino_genai
class Raising(openvino_genai.StreamerBase):
    def write(self, token): raise ValueError("a fault in a streamer")
    def end(self): pass
pipeline = openvino_genai.LLMPipeline(sys.argv[1], "CPU", ATTENTION_BACKEND="SDPA")
for streamer in (Raising(), None):
    try:
        pipeline.generate("hello", streamer=streamer, max_new_tokens=3)
    except Exception as error:
        print(str(error).strip(), flush=True)
os._exit(0)  # its destructor aborts the process
"""


@pytest.mark.slow
def test_a_streamer_that_raises_spoils_the_pipeline(model_path: str) -> None:
    """So ours does nothing that can."""
    command = [sys.executable, "-c", RAISING, model_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230, check=True)
    first, second = done.stdout.splitlines()
    assert "a fault in a streamer" in first
    assert "Infer Request is busy" in second


class TestLoading:
    @pytest.mark.skipif("NPU" in openvino.Core().available_devices, reason="there is an NPU")
    def test_an_npu_that_is_not_there_is_missed_by_name(self, short_model: Path) -> None:
        """Without the question the library fails while it reshapes the model, with a word of shapes."""
        with pytest.raises(LoadError, match="no NPU") as caught:
            StatefulEngine(StatefulTextSpec(str(short_model), device="NPU"))
        assert caught.value.field == "device"

    def test_what_the_library_decodes_otherwise_it_refuses_here(self, short_model: Path) -> None:
        """So `kinds/text/engine_choice.py` refuses it with the name of the option."""
        with pytest.raises(RuntimeError, match="requires PagedAttention"):
            ov_genai.LLMPipeline(str(short_model), "CPU", ATTENTION_BACKEND="SDPA", prompt_lookup=True)

    @pytest.mark.parametrize(
        ("device", "properties", "expected"),
        [
            ("CPU", {}, (8192, None)),
            ("NPU", {}, (1152, 1024)),
            ("NPU", {"MAX_PROMPT_LEN": 2048, "MIN_RESPONSE_LEN": 512}, (2560, 2048)),
            ("NPU", {"MAX_PROMPT_LEN": 8192}, (8192, 8192)),
        ],
    )
    def test_an_npu_has_fixed_lengths(
        self, device: str, properties: dict[str, object], expected: tuple[int | None, int | None]
    ) -> None:
        assert lengths(device, properties, 8192) == expected

    def test_a_length_must_be_one(self) -> None:
        with pytest.raises(LoadError, match="MAX_PROMPT_LEN: expected a whole number of tokens, got 'x'"):
            lengths("NPU", {"MAX_PROMPT_LEN": "x"}, None)


def test_a_request_is_not_taken_twice(engine: StatefulEngine) -> None:
    add(engine, 1, FRANCE)
    with pytest.raises(Internal, match="already running"):
        engine.add(Add(1, FRANCE, False, Sampling(max_tokens=1)))
