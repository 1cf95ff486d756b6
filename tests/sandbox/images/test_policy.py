"""--allowed_media_domains: what is a list, and which addresses are public."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovserve.errors import LoadError
from ovserve.sandbox.images.policy import as_address, is_public, parse_policy


def test_nothing_is_allowed_by_default() -> None:
    policy = parse_policy("", "")
    assert not policy.urls
    assert policy.directory is None
    assert not policy.allows_host("example.org")


def test_hosts_are_compared_exactly() -> None:
    policy = parse_policy("Images.Example.org, cdn.example.org", "")
    assert policy.allows_host("images.example.org")
    for host in ("example.org", "a.images.example.org", "images.example.org.", "93.184.216.34", "127.0.0.1"):
        assert not policy.allows_host(host)
    assert policy.allows_address("93.184.216.34")
    assert not policy.allows_address("10.0.0.1")


def test_all_is_every_host_that_is_public() -> None:
    policy = parse_policy("all", "")
    assert policy.allows_host("example.org")
    assert policy.allows_host("93.184.216.34")
    assert not policy.allows_host("10.0.0.1")
    assert not policy.allows_address("169.254.169.254")


def test_a_network_makes_its_addresses_public() -> None:
    policy = parse_policy("images.corp,10.1.0.0/16,fd00::5", "")
    assert policy.allows_host("images.corp")
    assert policy.allows_host("10.1.2.3")
    assert policy.allows_host("fd00::5")
    assert policy.allows_address("10.1.255.1")
    assert not policy.allows_address("10.2.0.1")
    assert not policy.allows_host("10.2.0.1")
    assert parse_policy("all,127.0.0.1", "").allows_address("127.0.0.1")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0",
        "100.64.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1",
        "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "ff0e::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "64:ff9b::a00:1", "2002:7f00:1::",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    ],
)  # fmt: skip
def test_not_public(address: str) -> None:
    parsed = as_address(address)
    assert parsed is not None
    assert not is_public(parsed)


@pytest.mark.parametrize("address", ["93.184.216.34", "1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_public(address: str) -> None:
    parsed = as_address(address)
    assert parsed is not None
    assert is_public(parsed)


@pytest.mark.parametrize(
    "entry", ["https://example.org", "*.example.org", "example.org:443", "a b", "ex/ample", "10.0.0.1/8"]
)
def test_what_is_no_host_is_a_load_error(entry: str) -> None:
    with pytest.raises(LoadError, match="--allowed_media_domains: expected host names"):
        parse_policy(f"example.org,{entry}", "")


def test_all_excludes_names() -> None:
    with pytest.raises(LoadError, match="remove the other names"):
        parse_policy("all,example.org", "")


def test_the_directory_must_exist(tmp_path: Path) -> None:
    assert parse_policy("", str(tmp_path)).directory == tmp_path.resolve()
    with pytest.raises(LoadError, match="--allowed_local_media_path: .*nowhere is not a directory"):
        parse_policy("", str(tmp_path / "nowhere"))
