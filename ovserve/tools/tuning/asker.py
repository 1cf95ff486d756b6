"""Render a user's text with the graph's chat template, like the server."""

from __future__ import annotations

from ovserve.calculators.llm_resource import load_template
from ovserve.engine.protocol.specs import TextFacts
from ovserve.llm.prompt.chat_template import ChatTemplate
from ovserve.llm.request import GenerateRequest, Sampling
from ovserve.sandbox.templates.pool import TemplatePool
from ovserve.tools.tuning.target import Target


class Asker:
    """Makes requests; a model without a chat template gets the plain text."""

    def __init__(self, templates: TemplatePool, template: ChatTemplate | None) -> None:
        self._templates = templates
        self._template = template

    @classmethod
    async def of(cls, target: Target, facts: TextFacts, templates: TemplatePool) -> Asker:
        """Build it. Raises LoadError in jinja's words."""
        template = await load_template(target.node, target.parsed, facts, templates)
        return cls(templates, template)

    async def request(self, text: str) -> GenerateRequest:
        """Return the request without sampling, which the round sets."""
        prompt, plain = text, self._template is None
        if self._template is not None:
            said = self._template.conversation([{"role": "user", "content": text}])
            prompt = await self._templates.render(self._template, said)
        return GenerateRequest("tune", (prompt,), plain, Sampling())
