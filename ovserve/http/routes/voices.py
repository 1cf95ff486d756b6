"""GET audio/voices: the voices of the graphs that speak, which clients show for a choice."""

from __future__ import annotations

from aiohttp import web

from ovserve.access import current_request
from ovserve.api.openai.common import encode
from ovserve.kinds.voice.api import Voice, VoiceList
from ovserve.kinds.voice.node import SpeechResource
from ovserve.serving.manager import Manager
from ovserve.serving.servable import Servable


class VoiceRoutes:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def list_voices(self, request: web.Request) -> web.Response:
        """List the voices of all graphs, or of the one that `?model=` names."""
        name = request.query.get("model")
        may = current_request().caller.may_use
        servables = [s for s in self._manager.servables if may(s.name)]
        if name is not None:
            servables = [self._manager.get(name)]
        voices = [voice for servable in servables for voice in _voices(servable)]
        return web.Response(body=encode(VoiceList(voices)), content_type="application/json")


def _voices(servable: Servable) -> list[Voice]:
    return [
        Voice(
            name, name, servable.name, speaker.voices.language_of(name), name == speaker.voices.default_name
        )
        for speaker in servable.resources.values()
        if isinstance(speaker, SpeechResource)
        for name in speaker.model.voices
    ]
