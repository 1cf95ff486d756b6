"""The metrics that the server keeps: what changed, no more than is bounded, and of a key's own models."""

from __future__ import annotations

from ovserve.access import Caller, Rights
from ovserve.console.history import KEPT_SECONDS, History

ALL = Caller("", Rights())


def page(generated: float, *more: str) -> str:
    lines = ["# TYPE a counter", 'vllm:a{model_name="m"} 1', f'a_total{{name="m"}} {generated}', "up 1"]
    return "\n".join([*lines, *more]) + "\n"


def test_a_line_is_kept_where_it_changes() -> None:
    history = History()
    for at, generated in enumerate((0, 0, 3, 3, 3)):
        history.record(float(at), page(generated, *(['b{name="x"} 1'] if at == 2 else [])))
    view = history.view(ALL)
    assert view["at"] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert view["series"] == {
        'a_total{name="m"}': [[0, 0.0], [2, 3.0]],
        "up": [[0, 1.0]],
        'b{name="x"}': [[2, 1.0], [3, None]],
    }


def test_only_the_last_quarter_of_an_hour_is_kept() -> None:
    history = History()
    for i in range(1000):
        history.record(5.0 * i, page(i, *(['gone{name="m"} 1'] if i == 0 else [])))
    view = history.view(ALL)
    assert view["at"][0] > 5.0 * 999 - KEPT_SECONDS
    assert len(view["at"]) == 180
    assert view["series"]['a_total{name="m"}'][0] == [0, 820.0]
    assert 'gone{name="m"}' not in view["series"]
    assert history.changes == 180 + 1


def test_memory_is_bounded_however_much_changes() -> None:
    history = History(max_changes=1000)
    for i in range(100):
        history.record(float(i), page(i, *(f'b{{name="m",n="{k}"}} {i}' for k in range(100))))
    view = history.view(ALL)
    assert history.changes <= 1000
    assert sum(map(len, view["series"].values())) == history.changes
    assert view["series"]['b{name="m",n="7"}'][-1] == [len(view["at"]) - 1, 99.0]


def test_a_key_sees_its_own_models() -> None:
    history = History()
    shared = 'ovserve_engine_process_cpu_seconds_total{process="both"} 1'
    history.record(0.0, page(1, 'a_total{name="pri\\"vate"} 9', shared))
    assert set(history.view(Caller("alice", Rights(models=("m",))))["series"]) == {'a_total{name="m"}', "up"}
    assert set(history.view(Caller("carol", Rights(models=('pri"vate',))))["series"]) == {
        'a_total{name="pri\\"vate"}',
        "up",
    }
