"""The operator's calls.

GET /v1/config returns the states, POST /v1/config/reload makes the server do what its configuration says now;
both are OVMS's. GET /metrics returns everything counted, for Prometheus. Two of vLLM's calls serve a LoRA
adapter by name and take it out again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from ovserve.access import current_request
from ovserve.api.openai.body import decode_body
from ovserve.api.openai.common import encode
from ovserve.api.openai.operation import Operation, doc
from ovserve.errors import InvalidArgument, LoadError, ModelNotFound, NotFound, OvserveError
from ovserve.http.body import json_of, json_response, read_small_body
from ovserve.services.monitoring.scrape import CONTENT_TYPE, Scraper
from ovserve.serving.manager import Manager
from ovserve.serving.settings import AdapterOf
from ovserve.serving.status import ServableStatus

RELOADED, UNCHANGED = 201, 200
FAULT = "x-ovserve-configuration-error"
MAX_HEADER_CHARACTERS = 2000  # characters of it: a header has to fit into what clients read


class Status(Struct):
    error_code: str
    error_message: str


class VersionStatus(Struct):
    version: str
    state: str
    status: Status
    state_detail: str | UnsetType = UNSET  # unloaded or loading, of one that answers when it is loaded


class ModelStatus(Struct):
    model_version_status: list[VersionStatus]


class Config:
    def __init__(self, manager: Manager) -> None:
        self._manager, self._scraper = manager, Scraper(manager)

    async def metrics(self, request: web.Request) -> web.Response:
        if not self._manager.metrics.enabled:
            raise NotFound("metrics are switched off; start the server with --metrics_enable true")
        return web.Response(body=await self._scraper.scrape(), headers={"Content-Type": CONTENT_TYPE})

    async def status(self, request: web.Request) -> web.Response:
        return self._document(200)

    async def reload(self, request: web.Request) -> web.Response:
        """201 when something is served anew or no longer, 200 when nothing had changed."""
        result = await self._manager.reload()
        if result.failed:
            raise LoadError(f"not loaded: {result.errors}")
        return self._document(RELOADED if result.changed else UNCHANGED)

    def _document(self, status: int) -> web.Response:
        by_name = groupby(self._manager.usable_statuses, attrgetter("name"))
        body = encode({name: ModelStatus(list(map(version_status, group))) for name, group in by_name})
        # OVMS's document has a place for each model, and none for the configuration itself.
        fault = self._manager.fault if current_request().caller.rights.admin else ""
        headers = {FAULT: " ".join(fault.split())[:MAX_HEADER_CHARACTERS]} if fault else {}
        return json_response(body, headers, status)


def version_status(status: ServableStatus) -> VersionStatus:
    details = Status(status.error_code, status.reason or "OK")
    return VersionStatus(str(status.version), status.state.name, details, status.state_detail or UNSET)


# LoRA adapters by name, as vLLM has them: https://docs.vllm.ai/en/latest/features/lora.html, read 2026-11-22


class LoadAdapter(msgspec.Struct, kw_only=True):
    lora_name: Annotated[str, doc("the name that requests give as their model")]
    lora_path: Annotated[
        str, doc("on the server: a .safetensors file, or a directory with adapter_model.safetensors")
    ]
    base_model_name: Annotated[str | None, doc("whose model it changes; default: the only one")] = None
    load_inplace: Annotated[bool | None, doc("replace an adapter of this name")] = None


class UnloadAdapter(msgspec.Struct, kw_only=True):
    lora_name: Annotated[str, doc("of an adapter that is served")]


_load = msgspec.json.Decoder(LoadAdapter)
_unload = msgspec.json.Decoder(UnloadAdapter)


class LoraRoutes:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def load(self, request: web.Request) -> web.Response:
        current_request().caller.require_admin()
        options, _ = decode_body(await read_small_body(request), _load)
        name, entry = options.lora_name, self._manager.entries.find(options.lora_name)
        served = entry is not None and entry.listed
        if entry is not None and served:
            if entry.spec.adapter is None:
                raise InvalidArgument.at("lora_name", f"{name!r} is a model")
            if not options.load_inplace:
                raise InvalidArgument.at("lora_name", f"{name!r} has been loaded already")
        parent = self._parent(options.base_model_name)
        base = self._manager.entries[parent].spec
        spec = replace(base, name=name, adapter=_adapter(parent, options.lora_path))
        try:
            await self._manager.load(name, spec)
        except OvserveError as error:
            if not served:  # the adapter that was to be replaced goes on
                with suppress(ModelNotFound):
                    await self._manager.unload(name)
            if isinstance(error, LoadError):
                raise InvalidArgument.at("lora_path", error.reason) from error
            raise
        return json_of(f"Success: LoRA adapter {name!r} added successfully.")

    async def unload(self, request: web.Request) -> web.Response:
        current_request().caller.require_admin()
        options, _ = decode_body(await read_small_body(request), _unload)
        entry = self._manager.entries.find(options.lora_name)
        if entry is None or not entry.listed or entry.spec.adapter is None:
            raise ModelNotFound(f"the adapter {options.lora_name!r} is not served", param="lora_name")
        await self._manager.unload(options.lora_name)
        return json_of(f"Success: LoRA adapter {options.lora_name!r} removed successfully.")

    def _parent(self, name: str | None) -> str:
        """Return the servable to change. Raises InvalidArgument or ModelNotFound."""
        if name is not None:
            return self._manager.get(name).name
        names = [s.name for s in self._manager.servables if s.contexts and not s.parent]
        if len(names) != 1:
            listed = ", ".join(names) or "none"
            raise InvalidArgument.at("base_model_name", f"required, expected one of {listed}")
        return names[0]


def _adapter(parent: str, path: str) -> AdapterOf:
    return AdapterOf(parent, Path(path).absolute())


OPERATIONS = (
    Operation("GET", "/metrics", "Everything counted, in Prometheus's text format."),
    Operation(
        "GET", "/v1/config", "The state of every graph, in OVMS's form.", answer=dict[str, ModelStatus]
    ),
    Operation(
        "POST",
        "/v1/config/reload",
        "Read the configuration again: 201 when something changed, 200 when not, 412 when something cannot "
        "be loaded; what was served before still is then.",
        answer=dict[str, ModelStatus],
        also={RELOADED: "something is served anew, or no longer"},
    ),
    Operation(
        "POST",
        "/v3/load_lora_adapter",
        "Serve a LoRA adapter under a name, until the configuration is read again.",
        answer=str,
        request=LoadAdapter,
        example={"lora_name": "sql", "lora_path": "/models/loras/sql"},
        of_models=False,
    ),
    Operation(
        "POST",
        "/v3/unload_lora_adapter",
        "Take a LoRA adapter out of service.",
        answer=str,
        request=UnloadAdapter,
        example={"lora_name": "sql"},
        of_models=False,
    ),
)
