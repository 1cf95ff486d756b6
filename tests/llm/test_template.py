"""Chat templates render as transformers renders them (ovserve.llm.template)."""

from __future__ import annotations

import pytest

from ovserve.errors import InvalidArgument, LoadError
from ovserve.llm.template import ChatTemplate

USER = [{"role": "user", "content": "<hi> & 'é'"}]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0]['content'] }}", "<hi> & 'é'"),
        ("{{ messages[0].content | tojson }}", "\"<hi> & 'é'\""),
        ("{{ {'b': 1, 'a': [1, 2]} | tojson(indent=1) }}", '{\n "b": 1,\n "a": [\n  1,\n  2\n ]\n}'),
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{% if tools is none %}no tools{% endif %}", "no tools"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% for i in range(5) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ extra }}", "given"),
    ],
)
def test_rendering(source: str, expected: str) -> None:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    assert template.render(USER, {"extra": "given"}) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages.__init__.__globals__ }}",
        "{% for i in range(10**9) %}x{% endfor %}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(InvalidArgument, match="chat template refused"):
        ChatTemplate(source).render(USER)


def test_a_template_that_does_not_compile_is_a_load_error() -> None:
    with pytest.raises(LoadError, match="does not compile"):
        ChatTemplate("{% for %}")


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="empty prompt"):
        ChatTemplate("{% if false %}x{% endif %}").render(USER)
