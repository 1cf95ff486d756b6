"""Who may change what is served, whichever front asks; and names that would like to be paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovserve.access import Caller, RequestContext, Rights, calling
from ovserve.calculators.shipped import MODULES
from ovserve.errors import ModelNotFound, PermissionDenied
from ovserve.graph import Registry
from ovserve.serving.config.file import GraphsDirectory
from ovserve.serving.manager import Manager
from tests.conftest import script_graph

USER, ADMIN = Caller("user", Rights()), Caller("admin", Rights(admin=True))


@pytest.fixture
async def manager(tmp_path: Path) -> object:
    script_graph(tmp_path / "secret", "{}")
    script_graph(tmp_path / "graphs/m", "{}")
    made = Manager(Registry(MODULES), repository=GraphsDirectory(tmp_path / "graphs"))
    yield made
    await made.stop()


async def test_a_change_needs_admin_rights_and_a_refused_one_changes_nothing(manager: Manager) -> None:
    await manager.reload()
    before = manager.get("m")
    with calling(RequestContext(USER)):
        for change in (
            lambda: manager.reload(),
            lambda: manager.replace([]),
            lambda: manager.load("m"),
            lambda: manager.unload("m"),
        ):
            with pytest.raises(PermissionDenied):
                await change()
    assert manager.get("m") is before
    with calling(RequestContext(ADMIN)):
        await manager.unload("m")
    with pytest.raises(ModelNotFound):
        manager.get("m")


@pytest.mark.parametrize("name", ["../secret", "m/../../secret", "./m", "/etc", "", ".", "..", "m\0"])
async def test_a_name_is_looked_up_and_never_joined_to_a_path(manager: Manager, name: str) -> None:
    await manager.reload()
    with calling(RequestContext(ADMIN)), pytest.raises(ModelNotFound):
        await manager.load(name)
    with pytest.raises(ModelNotFound):
        manager.get(name)


async def test_who_may_not_use_a_model_does_not_hear_of_it(manager: Manager) -> None:
    await manager.reload()
    with (
        calling(RequestContext(Caller("other", Rights(models=("x*",))))),
        pytest.raises(ModelNotFound) as caught,
    ):
        manager.get("m")
    assert str(caught.value).endswith("served: none")
