# SPDX-License-Identifier: Apache-2.0
"""Accepted and refused values of every key; TOML, variables and the plugin agree on them."""

import json
from pathlib import Path
from typing import Any

import pytest
from config_samples import JOB_KEYS, SYNTAX_SAMPLES, TABLE_KEYS, bad, good, identity, texts
from hypothesis import given
from hypothesis import settings as limits
from programs import finished

from harp import config
from harp.config import keys, values
from harp.config.keys import Key, Type
from harp.config.model import DaemonConfig, DpdkConfig, MetricsConfig, NicConfig


def toml(value: Any) -> str:
    """Return a value as TOML, whose strings, numbers and arrays include those of JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")


def text_of(key: Key, value: Any) -> str:
    """Return a file that sets one key, on line 2 or 3."""
    if key.table not in keys.ARRAYS:
        return f"\n[{key.table}]\n{key.key} = {toml(value)}\n"
    name_key = keys.ARRAYS[key.table]
    name = "" if key.key == name_key else f'{name_key} = "e"\n'
    return f"[[{key.table}]]\n{name}{key.key} = {toml(value)}\n"


def value_in(parsed: config.Config, key: Key) -> config.Value:
    if key.table == keys.NIC_TABLE:
        return parsed.nic_values[0][key.key]
    if key.table == keys.DPDK_TABLE:
        return parsed.dpdk_values[0][key.key]
    return parsed.values[key.name]


def with_companions(key: Key, text: str) -> str:
    """Add the other keys without which the key's value is invalid."""
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
        entry = value_in(config.parse(with_companions(key, text_of(key, value))), key)
        assert entry.source.kind == "file"
        assert entry.source.line in (2, 3)
        assert values.from_toml(value, key) == entry.value
        assert values.from_text(entry.text, key) == entry.value


@pytest.mark.parametrize("key", TABLE_KEYS, ids=identity)
def test_bad_values_are_named(key: Key) -> None:
    """The error names the place, the key, the value and the accepted values."""
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
def test_variables_override_the_file_and_the_file_overrides_defaults(key: Key) -> None:
    samples = [values.from_toml(value, key) for value in good(key)]
    in_file, in_environment = [value for value in samples if values.to_text(value, key)][:2]
    text = with_companions(key, f"[{key.table}]\n{key.key} = {values.to_toml(in_file, key)}\n")
    assert config.parse("").values[key.name] == config.Value(key, values.preset(key))
    assert config.parse(text).values[key.name].value == in_file
    environ = {key.name: values.to_text(in_environment, key)}
    entry = config.parse(text, environ=environ).values[key.name]
    assert entry.value == in_environment
    assert entry.source.kind == "environment"
    unset = config.parse(text, environ={key.name: ""}).values[key.name]
    assert unset.value == in_file, "an empty variable counts as unset"


@pytest.mark.parametrize("key", keys.global_keys(), ids=identity)
def test_a_bad_variable_is_named(key: Key) -> None:
    for value in bad(key):
        if not isinstance(value, str) or not value or key.type is Type.LIST:
            continue
        if key.type in (Type.U32, Type.MS, Type.US) and value == str(key.max):
            continue  # good as the text of a variable
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
def test_the_plugin_and_python_accept_the_same_values(key: Key, probe: Path) -> None:
    """Otherwise harpctl would accept a value that jobs refuse, or the reverse."""
    samples: set[str] = {value for value in [*good(key), *bad(key)] if isinstance(value, str)}
    samples |= {values.to_text(values.from_toml(value, key), key) for value in good(key)}
    samples |= {str(value) for value in bad(key) if type(value) is int}

    @given(texts(key))
    @limits(max_examples=200, database=None, deadline=None)
    def collect(text: str) -> None:
        samples.add(text)

    collect()
    inputs = sorted(text for text in samples if text and "\x00" not in text)
    arguments = [f"{key.name}={text}" for text in inputs]
    done = finished([probe, "config", *arguments], check=True)
    verdicts = [line.split() for line in done.stdout.splitlines()]
    assert len(verdicts) == len(inputs)
    for text, (as_variable, as_setting) in zip(inputs, verdicts, strict=True):
        try:
            config.parse("", environ={key.name: text})
            in_python = "1"
        except config.ConfigError:
            in_python = "0"
        if key.name in SYNTAX_SAMPLES and key.name != "HARP_RSS" and as_variable == "1":
            continue  # the plugin checks the syntax when it uses the value
        assert in_python == as_variable, text
        of_harpd = key.table and key.name not in ("HARP_DAEMON", "HARP_SOCKET")
        if "\n" not in text and of_harpd:
            assert as_setting == as_variable, text


def test_dataclasses_have_the_defaults_of_the_keys() -> None:
    parsed = config.parse('[[nic]]\nifname = "eth1"\n[[dpdk]]\ndevice = "net_null0"\n')
    assert parsed.daemon == DaemonConfig()
    assert parsed.metrics == MetricsConfig()
    assert parsed.nics == (NicConfig(ifname="eth1"),)
    assert parsed.dpdk == (DpdkConfig(device="net_null0"),)


def test_job_settings_are_those_of_the_file_without_defaults() -> None:
    text = '[job]\nframes = 1024\npath = "auto"\ndaemon = "off"\n[tcp]\necn = "request"\n'
    parsed = config.parse(
        text + '[daemon]\nrun_dir = "/x"\nsocket = "/y"\n', environ={"HARP_LABEL": "z"}
    )
    assert parsed.job_settings() == "HARP_FRAMES=1024\nHARP_ECN=request\n"
