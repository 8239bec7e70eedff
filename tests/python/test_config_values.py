# SPDX-License-Identifier: Apache-2.0
"""Every key: accepted and refused values, and agreement between TOML, variables and the plugin."""

import json
from pathlib import Path
from typing import Any

import pytest
from config_samples import JOB_KEYS, MEANINGFUL, TABLE_KEYS, bad, good, identity, texts
from hypothesis import given
from hypothesis import settings as limits
from programs import finished

from harp import config
from harp.config import keys, values
from harp.config.keys import Key, Type
from harp.config.model import DaemonConfig, DpdkConfig, MetricsConfig, NicConfig


def toml(value: Any) -> str:
    """A value as TOML; JSON's strings, numbers and arrays are TOML's too."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")


def text_of(key: Key, value: Any) -> str:
    """A file that sets one key, on line 3 at the latest."""
    if key.table not in keys.ARRAYS:
        return f"\n[{key.table}]\n{key.key} = {toml(value)}\n"
    needed = keys.ARRAYS[key.table]
    name = "" if key.key == needed else f'{needed} = "e"\n'
    return f"[[{key.table}]]\n{name}{key.key} = {toml(value)}\n"


def value_in(found: config.Config, key: Key) -> config.Value:
    if key.table == keys.NIC_TABLE:
        return found.nic_values[0][key.key]
    if key.table == keys.DPDK_TABLE:
        return found.dpdk_values[0][key.key]
    return found.values[key.name]


def companions(key: Key, text: str) -> str:
    """What a value needs beside it to be good."""
    needs = {
        "coalesce_rx_us": 'coalesce = "set"\n',
        "coalesce_tx_us": 'coalesce = "set"\n',
        "irq_cores": 'irq_affinity = "cores"\n',
    }
    extra = needs.get(key.key, "")
    if key.key == "irq_affinity" and '"cores"' in text:
        extra = "irq_cores = [1]\n"
    if key.key == "irq_cores" and ("= []" in text or '= ""' in text):
        extra = ""
    if key.table == keys.DPDK_TABLE and key.key in ("gateways", "routes"):
        extra = 'addresses = ["192.0.2.1/24", "2001:db8::1/64"]\n'
    if key.key == "port_min":
        extra = "port_max = 65535\n"
    elif key.key == "port_max":
        extra = "port_min = 1024\n"
    return text + extra


@pytest.mark.parametrize("key", TABLE_KEYS, ids=identity)
def test_good_values_are_read(key: Key) -> None:
    for value in good(key):
        found = config.parse(companions(key, text_of(key, value)))
        read = value_in(found, key)
        assert read.source.kind == "file"
        assert read.source.line in (2, 3)
        assert values.from_toml(value, key) == read.value
        assert values.from_text(read.text, key) == read.value


@pytest.mark.parametrize("key", TABLE_KEYS, ids=identity)
def test_bad_values_are_named(key: Key) -> None:
    """The line says where, which key, what was found and what would do."""
    for value in bad(key):
        text = text_of(key, value)
        with pytest.raises(config.ConfigError) as caught:
            config.parse(text, "f.toml")
        line = 1 + text[: text.index(f"{key.key} = ")].count("\n")
        problem = caught.value.problems[0]
        assert problem.place == f"f.toml:{line}:1", value
        assert problem.key == key.place
        assert "must be" in problem.message
        assert len(caught.value.problems) == 1
        assert all(c.isprintable() for c in str(problem))
        assert len(str(problem)) < 400


@pytest.mark.parametrize("key", [key for key in TABLE_KEYS if key.variable], ids=identity)
def test_a_variable_beats_the_file_and_the_file_the_default(key: Key) -> None:
    several = [values.from_toml(value, key) for value in good(key)]
    in_file, in_environment = [value for value in several if values.to_text(value, key)][:2]
    text = companions(key, f"[{key.table}]\n{key.key} = {values.to_toml(in_file, key)}\n")
    assert config.parse("").values[key.name] == config.Value(key, values.preset(key))
    assert config.parse(text).values[key.name].value == in_file
    environ = {key.name: values.to_text(in_environment, key)}
    found = config.parse(text, environ=environ).values[key.name]
    assert found.value == in_environment
    assert found.source.kind == "environment"
    unset = config.parse(text, environ={key.name: ""}).values[key.name]
    assert unset.value == in_file, "an empty variable is an unset one"


@pytest.mark.parametrize("key", keys.global_keys(), ids=identity)
def test_a_bad_variable_is_named(key: Key) -> None:
    for value in bad(key):
        if not isinstance(value, str) or not value or key.type is Type.LIST:
            continue
        if key.type in (Type.U32, Type.MS, Type.US) and value == str(key.max):
            continue  # a text is what variables have
        if key.type is Type.BOOL and value == "true":
            continue
        with pytest.raises(config.ConfigError) as caught:
            config.parse("", environ={key.name: value})
        (problem,) = caught.value.problems
        assert problem.place == "environment"
        assert problem.key == key.name
        assert "must be" in problem.message


def test_a_bad_element_of_a_list_variable_is_named() -> None:
    with pytest.raises(config.ConfigError, match="HARP_USERS"):
        config.parse("", environ={"HARP_USERS": "a,b c"})
    assert config.parse("", environ={"HARP_USERS": "a,7"})["HARP_USERS"] == ("a", "7")


@pytest.fixture(scope="module")
def probe(build_dir: Path) -> Path:
    return build_dir / "tests" / "unit" / "plugin_probe"


@pytest.mark.parametrize("key", JOB_KEYS, ids=identity)
def test_the_plugin_takes_what_python_takes(key: Key, probe: Path) -> None:
    """Two parsers, one opinion: what harpctl finds good no job finds bad, nor the reverse."""
    samples: set[str] = {value for value in [*good(key), *bad(key)] if isinstance(value, str)}
    samples |= {values.to_text(values.from_toml(value, key), key) for value in good(key)}
    samples |= {str(value) for value in bad(key) if type(value) is int}

    @given(texts(key))
    @limits(max_examples=200, database=None, deadline=None)
    def collect(text: str) -> None:
        samples.add(text)

    collect()
    tried = sorted(text for text in samples if text and "\x00" not in text)
    arguments = [f"{key.name}={text}" for text in tried]
    done = finished([probe, "config", *arguments], check=True)
    verdicts = [line.split() for line in done.stdout.splitlines()]
    assert len(verdicts) == len(tried)
    for text, (as_variable, as_setting) in zip(tried, verdicts, strict=True):
        try:
            config.parse("", environ={key.name: text})
            here = "1"
        except config.ConfigError:
            here = "0"
        if key.name in MEANINGFUL and key.name != "HARP_RSS" and as_variable == "1":
            continue  # what it means, the plugin finds out when it uses it
        assert here == as_variable, text
        of_harpd = key.table and key.name not in ("HARP_DAEMON", "HARP_SOCKET")
        if "\n" not in text and of_harpd:
            assert as_setting == as_variable, text


def test_typed_views_have_the_lists_defaults() -> None:
    found = config.parse('[[nic]]\nifname = "eth1"\n[[dpdk]]\ndevice = "net_null0"\n')
    assert found.daemon == DaemonConfig()
    assert found.metrics == MetricsConfig()
    assert found.nics == (NicConfig(ifname="eth1"),)
    assert found.dpdk == (DpdkConfig(device="net_null0"),)


def test_settings_for_jobs_are_the_files_and_no_defaults() -> None:
    text = '[job]\nframes = 1024\npath = "auto"\ndaemon = "off"\n[tcp]\necn = "request"\n'
    found = config.parse(
        text + '[daemon]\nrun_dir = "/x"\nsocket = "/y"\n', environ={"HARP_LABEL": "z"}
    )
    assert found.job_settings() == "HARP_FRAMES=1024\nHARP_ECN=request\n"
