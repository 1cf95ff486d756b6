"""vLLM's calls that serve a LoRA adapter by name and take it out again, for callers with admin rights.

Source: https://docs.vllm.ai/en/latest/features/lora.html, read 2026-11-22
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
from aiohttp import web

from ovserve.access import current_request
from ovserve.api.openai.body import decode_body
from ovserve.api.openai.operation import Operation, doc
from ovserve.errors import InvalidArgument, LoadError, ModelNotFound, OvserveError
from ovserve.http.body import json_of, read_small_body
from ovserve.serving.manager import Manager
from ovserve.serving.settings import AdapterOf


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
