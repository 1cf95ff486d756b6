"""Template processes: what no template can do to the server (ovserve.sandbox.templates)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ovserve.errors import InvalidArgument, LoadError, Unavailable
from ovserve.llm.chat_template import ChatTemplate
from ovserve.sandbox.rendering import MAX_TEMPLATES
from ovserve.sandbox.templates import Templates
from ovserve.sandbox.worker import MAX_PART
from tests.conftest import eventually
from tests.sandbox.work import kept_templates

GOOD = ChatTemplate("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}")
SECONDS = 1.0  # of which hanging templates compute all
PATIENT = 60.0  # for a process that is about to start, and for templates that end by themselves


def user(content: Any = "hi") -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


@pytest.fixture
async def templates() -> AsyncIterator[Templates]:
    templates = Templates(seconds=PATIENT, memory=256 << 20)
    yield templates
    await templates.stop()


@pytest.fixture
async def hasty() -> AsyncIterator[Templates]:
    """They end what hangs soon, and wait for processes nevertheless."""
    templates = Templates(seconds=SECONDS, memory=256 << 20)
    templates.pool._wait = PATIENT
    yield templates
    await templates.stop()


async def render(templates: Templates, template: ChatTemplate, content: Any = "hi", **kwargs: Any) -> str:
    return await templates.render(template, template.conversation(user(content), kwargs))


async def test_the_first_template_finds_a_process_that_was_prepared(templates: Templates) -> None:
    templates.prepare()
    templates.prepare()
    await eventually(lambda: any(templates.pool.pids))
    prepared = templates.pool.pids
    assert await render(templates, await templates.load(GOOD)) == "user:hi;"
    assert templates.pool.pids == prepared
    assert len(prepared) == 1


async def test_a_template_waits_for_the_process_that_starts() -> None:
    """However long that takes: another one would not be there earlier. Two templates get two processes."""
    for count in (1, 2):
        templates = Templates(seconds=PATIENT, memory=256 << 20, grow_after=0.0)
        templates.prepare()
        await asyncio.gather(*(templates.load(GOOD) for _ in range(count)))
        assert len(templates.pool.pids) == count
        await templates.stop()


# Each waits for the variable `go`, so that it loads: the probe at load does not set it.
ENDLESS = {
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "quadratic in one call of C": "{{ ('a' * k * 10000000) | replace('a', 'bb') | wordwrap(1) | length }}",
    "a huge power": "{{ (10 ** (k * 10 ** 8)) % 7 }}",
}
TOO_LARGE = {
    "a repeated string": "{{ 'x' * k * 10 ** 9 }}",
    "a centred string": "{{ 'x' | center(k * 10 ** 10) }}",
    "a string doubled forty times": "{% set ns = namespace(s='x') %}{% for _ in range(40) %}"
    "{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s | length }}",
    "a huge join": "{{ (['x' * k * 1000000] * 100000) | join('y') }}",
    "a format's width": "{{ '%999999999999d' % k }}",
    "a nested list": "{% set ns = namespace(l=[1]) %}{% for _ in range(60) %}{% set ns.l = ns.l + ns.l %}"
    "{% endfor %}{{ ns.l | length }}",
    "a prompt over the limit": "{{ 'x' * k * 70000000 }}",
}
RAISING = {
    "a macro without an end": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "a range over the sandbox's limit": "{% for a in range(10 ** 9) %}x{% endfor %}",
    "deep parentheses in data": "{% set ns = namespace(l=[]) %}{% for _ in range(90000) %}"
    "{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | tojson }}",
}


def only_if_told(source: str) -> ChatTemplate:
    """`k` is 1, and jinja2 does not know that when it compiles: it would work constants out."""
    return ChatTemplate("ok{% set k = messages | length %}{% if go %}" + source + "{% endif %}")


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
async def test_what_takes_too_long_is_ended_and_the_next_request_is_served(
    hasty: Templates, source: str
) -> None:
    template = await hasty.load(only_if_told(source))
    assert await render(hasty, template) == "ok"
    (before,) = hasty.pool.pids
    with pytest.raises(InvalidArgument, match=r"did not finish within 1 s|too much memory") as error:
        await render(hasty, template, go=True)
    assert error.value.param == "messages"
    assert await render(hasty, template) == "ok"
    assert before not in hasty.pool.pids or "memory" in error.value.message


@pytest.mark.parametrize("source", (TOO_LARGE | RAISING).values(), ids=TOO_LARGE | RAISING)
async def test_what_is_too_large_or_too_deep_is_refused(templates: Templates, source: str) -> None:
    template = await templates.load(only_if_told(source))
    with pytest.raises(InvalidArgument, match=r"memory|characters|rejected|did not finish|ended its process"):
        await render(templates, template, go=True)
    assert await render(templates, template) == "ok"


async def test_the_loop_turns_and_others_are_served_while_one_template_hangs(templates: Templates) -> None:
    good, bad = await templates.load(GOOD), await templates.load(only_if_told(ENDLESS["nested ranges"]))
    hanging = asyncio.create_task(render(templates, bad, go=True))
    await asyncio.sleep(0)
    assert await render(templates, good) == "user:hi;"
    assert not hanging.done(), "a second process was started for the one who waited"
    hanging.cancel()
    await asyncio.wait({hanging})


async def test_nobody_waits_longer_than_the_bound(hasty: Templates) -> None:
    bad = await hasty.load(only_if_told(ENDLESS["nested ranges"]))
    hasty.pool._wait = SECONDS
    results = await asyncio.gather(*(render(hasty, bad, go=True) for _ in range(7)), return_exceptions=True)
    assert {type(r) for r in results} == {InvalidArgument, Unavailable}
    hasty.pool._wait = PATIENT
    assert await render(hasty, bad) == "ok"


async def test_a_client_that_leaves_takes_nothing_along(templates: Templates) -> None:
    template = await templates.load(GOOD)
    leaving = [asyncio.create_task(render(templates, template, "x" * 100_000)) for _ in range(20)]
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    assert await render(templates, template) == "user:hi;"
    assert await asyncio.gather(*(render(templates, template, str(i)) for i in range(50))) == [
        f"user:{i};" for i in range(50)
    ]


async def test_a_killed_process_is_not_noticed(templates: Templates) -> None:
    template = await templates.load(GOOD)
    for _ in range(3):
        os.kill(templates.pool.pids[0], signal.SIGKILL)
        assert await render(templates, template) == "user:hi;"


async def test_a_template_is_compiled_and_probed_once(templates: Templates) -> None:
    source = "{{ messages[1].tool_calls[0].function.arguments | tojson if messages[1] else tools }}"
    template = await templates.load(ChatTemplate(source, bos_token="<s>"))
    assert template.expects.object_arguments
    assert template == ChatTemplate(source, bos_token="<s>"), "what it expects follows from its sources"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for %}", "does not compile: .*Expected"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "does not compile"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}tool_calls",
            "did not",
        ),
    ],
)
async def test_a_template_that_cannot_be_loaded(hasty: Templates, source: str, words: str) -> None:
    with pytest.raises(LoadError, match=words):
        await hasty.load(ChatTemplate(source))
    assert await hasty.load(GOOD)


async def test_integers_of_any_size_and_odd_text_arrive(templates: Templates) -> None:
    template = await templates.load(ChatTemplate("{{ n | tojson }}{{ messages[0].content }}"))
    assert await render(templates, template, "\0\x7f\u2028é🎉", n=[2**80, -(2**70)]) == (
        f"[{2**80}, {-(2**70)}]\0\x7f\u2028é🎉"
    )


async def test_a_long_prompt_arrives_in_parts_as_one_text(templates: Templates) -> None:
    template = await templates.load(GOOD)
    some = (MAX_PART - 7, MAX_PART - 6, MAX_PART - 5, 2 * MAX_PART - 6, 3 * MAX_PART)
    for length in some:  # "user:" and ";" are six more
        text = "\N{GRINNING FACE}" * (length - 1) + "e"
        assert await render(templates, template, text) == f"user:{text};"
        assert await render(templates, template) == "user:hi;"


async def test_what_cannot_be_sent_is_a_clear_refusal(templates: Templates) -> None:
    template = await templates.load(GOOD)
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    for content in ("\ud800", deep):
        with pytest.raises(InvalidArgument, match="cannot be passed to the chat template"):
            await render(templates, template, content)
    assert await render(templates, template) == "user:hi;"


async def test_half_a_surrogate_pair_in_a_prompt_is_replaced(templates: Templates) -> None:
    template = await templates.load(ChatTemplate("{{ messages[0].content | from_json if go }}x"))
    assert await render(templates, template, '"\\ud800"', go=True) == "\ufffdx"
    assert await render(templates, template, '"\\ud83c\\udf89"', go=True) == "🎉x"


async def test_half_a_surrogate_pair_in_the_arguments_of_a_call_is_replaced(templates: Templates) -> None:
    call = "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
    template = await templates.load(ChatTemplate("{% for m in messages %}" + call + "{% endfor %}"))
    assert template.expects.object_arguments
    function = {"name": "f", "arguments": '{"a": "\\ud83d cut, \\ud83c\\udf89 whole"}'}
    message = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": function}]}
    prompt = await templates.render(template, template.conversation([message], {}))
    assert prompt == '{"a": "\ufffd cut, 🎉 whole"}'


async def test_errors_name_the_field_of_the_dialect(templates: Templates) -> None:
    template = await templates.load(ChatTemplate("{{ raise_exception('roles must alternate') if go }}x"))
    with pytest.raises(InvalidArgument, match="roles must alternate") as error:
        await templates.render(template, template.conversation(user(), {"go": True}, param="input"))
    assert error.value.param == "input"


async def test_stop_ends_processes_and_those_who_wait() -> None:
    templates = Templates(seconds=60)
    bad = await templates.load(only_if_told(ENDLESS["nested ranges"]))
    running = [asyncio.create_task(render(templates, bad, go=True)) for _ in range(3)]
    await asyncio.sleep(0)
    pids = templates.pool.pids
    await templates.stop()
    results = await asyncio.gather(*running, return_exceptions=True)
    assert {type(r) for r in results} <= {InvalidArgument, Unavailable}
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_templates_of_former_times_are_forgotten(templates: Templates) -> None:
    """Reloads bring new templates for ever; what is in use stays usable."""
    first = await templates.load(GOOD)
    for i in range(3 * MAX_TEMPLATES):
        template = await templates.load(ChatTemplate(f"{i}: {{{{ messages[0].content }}}}"))
        assert await render(templates, template) == f"{i}: hi"
    (process,) = templates.pool.pids
    assert await templates.pool.call(kept_templates) <= MAX_TEMPLATES
    assert await render(templates, first) == "user:hi;"
    assert templates.pool.pids == [process]


async def test_messages_that_need_more_memory_than_there_is() -> None:
    templates = Templates(memory=128 << 20)
    try:
        template = await templates.load(GOOD)
        with pytest.raises(InvalidArgument, match="too much memory|ended its process") as error:
            await render(templates, template, "x" * (60 << 20))
        assert error.value.param == "messages"
        assert await render(templates, template) == "user:hi;"
    finally:
        await templates.stop()
