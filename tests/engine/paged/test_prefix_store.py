"""The file of prefixes: what another process wrote is found whole or not at all."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ovserve.kinds.text.worker.paged.blocks import ROOT, BlockPool, digest_of
from ovserve.kinds.text.worker.paged.model import BLOCK_TOKENS
from ovserve.kinds.text.worker.paged.prefix_store import PAGE_BYTES, PrefixStore, store_file
from tests.conftest import until

BLOCKS, MANY = 8, 1 << 30
WRITE = """
import sys, time
from pathlib import Path
from tests.engine.paged.test_prefix_store import caches, digest, fill
from ovserve.kinds.text.worker.paged.prefix_store import PrefixStore
arrays = caches()
fill(arrays)
store = PrefixStore(Path(sys.argv[1]), int(sys.argv[2]), arrays)
for block in map(int, sys.argv[3].split(",")):
    store.offer(digest(block), block)
    while not store.has(digest(block)):
        time.sleep(0.005)
print("written", flush=True)
time.sleep(600)
"""


def caches() -> list[np.ndarray]:
    """Keys and values of two layers, one layer of another size."""
    return [np.zeros((BLOCKS, size), np.uint8) for size in (5000, 5000, 700, 700)]


def fill(arrays: list[np.ndarray]) -> None:
    for number, one in enumerate(arrays):
        one[:] = np.random.default_rng(number).integers(0, 256, one.shape, np.uint8)


def digest(block: int) -> bytes:
    return bytes([block]) * 32


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.kv"


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []
    yield running
    for process in running:
        process.kill()
        process.communicate()


def write(
    file: Path, blocks: str, size: int, processes: list[subprocess.Popen[str]]
) -> subprocess.Popen[str]:
    """Start a process that has written the blocks, and has the file."""
    command = [sys.executable, "-c", WRITE, str(file), str(size), blocks]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    processes.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    return process


def wait_for(store: PrefixStore, block: int) -> None:
    until(lambda: store.has(digest(block)))


def loaded(store: PrefixStore, arrays: list[np.ndarray], block: int) -> bool:
    """Return whether a block is read, after a check that all of it is right and nothing else is touched."""
    whole = caches()
    fill(whole)
    before = [one.copy() for one in arrays]
    if not (store.has(digest(block)) and store.load(digest(block), 1)):
        return False
    for one, old, right in zip(arrays, before, whole, strict=True):
        assert np.array_equal(one[1], right[block])
        one[1] = old[1]
        assert np.array_equal(one, old)
    return True


def test_blocks_outlive_a_killed_process(file: Path, processes: list[subprocess.Popen[str]]) -> None:
    process = write(file, "2,0,5", MANY, processes)
    arrays = caches()
    store = PrefixStore(file, MANY, arrays)
    assert not loaded(store, arrays, 2), "the other process has the file"
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(store, 2)
    assert [loaded(store, arrays, block) for block in (0, 2, 5, 1)] == [True, True, True, False]
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("place", [4, 40, 100, 6000, 11_000])
def test_a_damaged_block_is_not_there(file: Path, processes: list[subprocess.Popen[str]], place: int) -> None:
    """`place`: of a byte in the slot of the second of three blocks: its mark, digest or contents."""
    process = write(file, "2,0,5", MANY, processes)
    process.kill()
    process.wait()
    data = bytearray(file.read_bytes())
    slot = next(at for at in range(PAGE_BYTES, len(data), PAGE_BYTES) if data[at : at + 5] == b"ovskv")
    data[slot + place] ^= 1
    file.write_bytes(data)
    arrays = caches()
    store = PrefixStore(file, MANY, arrays)
    assert [loaded(store, arrays, block) for block in (2, 0, 5)] == [True, False, True]
    whole = caches()
    fill(whole)
    for one, right in zip(arrays, whole, strict=True):
        one[:] = right
    store.offer(digest(0), 0)
    wait_for(store, 0)
    assert loaded(store, arrays, 0), "it is written again"


def test_a_file_cut_within_a_block(file: Path, processes: list[subprocess.Popen[str]]) -> None:
    process = write(file, "2,0,5", MANY, processes)
    process.kill()
    process.wait()
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 200)
    arrays = caches()
    store = PrefixStore(file, MANY, arrays)
    assert [loaded(store, arrays, block) for block in (2, 0, 5)] == [True, True, False]


def test_the_file_has_a_bound(file: Path, processes: list[subprocess.Popen[str]]) -> None:
    size = 2 * 3 * PAGE_BYTES + PAGE_BYTES - 1
    process = write(file, "2,0,5,3", size, processes)
    process.kill()
    process.wait()
    assert file.stat().st_size <= size
    arrays = caches()
    store = PrefixStore(file, size, arrays)
    assert [loaded(store, arrays, block) for block in (2, 0, 5, 3)] == [False, False, True, True]


def test_the_pool_loads_what_others_computed(file: Path) -> None:
    """A small pool over a large file: sequences come back whole after many others had their blocks."""
    arrays = caches()
    store = PrefixStore(file, MANY, arrays)
    pool = BlockPool(BLOCKS, caches=True, copy=lambda *_: None, store=store)
    random = np.random.default_rng(1)
    sequences = [array("q", random.integers(0, 9, 3 * BLOCK_TOKENS + 1).tolist()) for _ in range(12)]
    right: dict[bytes, list[np.ndarray]] = {}
    for item in range(4):
        for ids in sequences:
            found = pool.find_prefix(ids)
            for block, known in found:
                assert all(
                    np.array_equal(one[block], old) for one, old in zip(arrays, right[known], strict=True)
                )
            if item:
                assert len(found) == 3
            table, before = array("i", [block for block, _ in found]), found[-1][1] if found else ROOT
            for at in range(len(found), 3):
                block = pool.allocate()
                assert block is not None
                for one in arrays:
                    one[block] = random.integers(0, 256, one.shape[1], np.uint8)
                table.append(block)
                before = pool.publish(block, before, ids[at * BLOCK_TOKENS : (at + 1) * BLOCK_TOKENS])
                right[before] = [one[block].copy() for one in arrays]
                until(partial(store.has, before))
            pool.release(table)
    assert pool.available == BLOCKS


def test_a_beginning_that_is_used_from_memory_stays_in_the_file(file: Path) -> None:
    """Room for six blocks: a prompt of three, which is asked again and again, and others in between."""
    arrays = caches()
    store = PrefixStore(file, 6 * 3 * PAGE_BYTES, arrays)
    pool = BlockPool(BLOCKS, caches=True, copy=lambda *_: None, store=store)
    often = array("q", [1] * 3 * BLOCK_TOKENS + [0])

    def ask(ids: array[int]) -> list[bytes]:
        found = pool.find_prefix(ids)
        table, digests = array("i", [block for block, _ in found]), [known for _, known in found]
        for at in range(len(found), 3):
            block = pool.allocate()
            assert block is not None
            table.append(block)
            digests.append(
                pool.publish(
                    block, digests[-1] if at else ROOT, ids[at * BLOCK_TOKENS : (at + 1) * BLOCK_TOKENS]
                )
            )
            until(lambda: store.has(digests[-1]))
        pool.release(table)
        return digests

    first = ask(often)
    for number in range(2, 6):
        ask(array("q", [number] * 3 * BLOCK_TOKENS + [0]))
        assert all(store.has(known) for known in first)
        assert ask(often) == first


def test_blocks_that_are_taken_away_are_not_written(file: Path) -> None:
    """Blocks get new contents as fast as they can, while the thread copies them."""
    arrays = caches()
    store = PrefixStore(file, MANY, arrays)
    pool = BlockPool(BLOCKS - 1, caches=True, copy=lambda *_: None, store=store)
    written: dict[bytes, int] = {}
    for number in itertools.count():
        # The thread has less priority: on a busy machine it may not come to copy any of the first ones.
        if number >= 2000 and number % 100 == 0 and any(map(store.has, written)):
            break
        ids = array("q", [number] * BLOCK_TOKENS)
        block = pool.allocate()
        assert block is not None
        for one in arrays:
            one[block] = number % 251
        written[pool.publish(block, ROOT, ids)] = number % 251
        pool.release(array("i", [block]))
    checked = 0
    for known, value in written.items():
        if store.has(known) and store.load(known, BLOCKS - 1):
            assert all((one[BLOCKS - 1] == value).all() for one in arrays)
            checked += 1
    assert checked


def test_other_weights_have_another_file(tmp_path: Path) -> None:
    weights = tmp_path / "openvino_model.bin"
    weights.write_bytes(bytes(100_000))
    weights.with_suffix(".xml").write_text("<net/>")
    first = store_file(tmp_path / "kept", weights, "layout")
    first.write_bytes(b"x")
    assert store_file(tmp_path / "kept", weights, "layout") == first
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    other = store_file(tmp_path / "kept", weights, "another")
    assert other != first
    assert not first.exists(), "it would never be read again"
    weights.with_suffix(".xml").write_text("<net2/>")
    assert store_file(tmp_path / "kept", weights, "another") != other


def test_digests_depend_on_everything_before() -> None:
    one, two = array("q", [1] * BLOCK_TOKENS), array("q", [2] * BLOCK_TOKENS)
    assert digest_of(digest_of(ROOT, one), two) != digest_of(digest_of(ROOT, two), two)
    assert digest_of(ROOT, one) != digest_of(ROOT, two)
