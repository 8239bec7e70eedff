# SPDX-License-Identifier: Apache-2.0
"""Combines environment, file and defaults, and reports all mistakes at once."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from harp._core import port_spec
from harp.config import document, values
from harp.config.document import ConfigError, Problem
from harp.config.keys import (
    COLLECTIVES_PREFIX,
    DEFAULT_FILE,
    DPDK_TABLE,
    NIC_TABLE,
    VARIABLE_PREFIX,
    Key,
    Reader,
    by_name,
    did_you_mean,
    find,
    global_keys,
    nearest_variable,
    tables,
)
from harp.config.model import Config, Source, Value, dpdk_view, port_name
from harp.config.schema import Reading

ALL_READERS = Reader.JOB | Reader.DAEMON | Reader.TOOL
_ENVIRONMENT = "environment"
COMMAND_LINE = "command line"
_ENCRYPT = "HARP_ENCRYPT"


def file_of(environ: Mapping[str, str] | None = None) -> tuple[Path, bool]:
    """Return the file to read, and whether the user named it (then it must exist)."""
    named = (os.environ if environ is None else environ).get("HARP_CONFIG", "")
    return Path(named or DEFAULT_FILE), bool(named)


def _from_environment(
    environ: Mapping[str, str], readers: Reader, problems: list[Problem], warnings: list[str]
) -> dict[str, Value]:
    result: dict[str, Value] = {}
    for name, text in environ.items():
        if not name.startswith(VARIABLE_PREFIX) or name.startswith(COLLECTIVES_PREFIX):
            continue
        key = by_name().get(name)
        if key is None:
            hint = nearest_variable(name)
            advice = f": did you mean {hint}?" if hint else ""
            shown = values.quote(name)[1:-1]
            warnings.append(f"{_ENVIRONMENT}: {shown} is unknown and ignored{advice}")
        elif text and key.readers & readers:
            try:
                result[name] = Value(key, values.from_text(text, key), Source("environment"))
            except ValueError as error:
                problems.append(Problem(_ENVIRONMENT, name, f"= {values.quote(text)}: {error}"))
    return result


def _from_command_line(settings: Mapping[str, str], problems: list[Problem]) -> dict[str, Value]:
    result: dict[str, Value] = {}
    for name, text in settings.items():
        key = find(name)
        if key is None or key.variable is None:
            places = [k.place for k in global_keys() if k.table]
            advice = did_you_mean(name, places, "`harpctl config show` lists the keys")
            if name.startswith(VARIABLE_PREFIX) and (hint := nearest_variable(name)):
                advice = f"did you mean {hint}?"
            shown = values.quote(name)[1:-1]
            problems.append(Problem(COMMAND_LINE, shown, f"is an unknown key: {advice}"))
            continue
        try:
            result[key.name] = Value(key, values.from_text(text, key), Source("command line"))
        except ValueError as error:
            problems.append(Problem(COMMAND_LINE, key.place, f"= {values.quote(text)}: {error}"))
    return result


def _mistake(value: Value, message: str, key: str = "") -> Problem:
    return Problem(str(value.source), key or value.key.place, message)


def _check_global(settings: Mapping[str, Value], problems: list[Problem]) -> None:
    """Report contradictions between settings with a single value."""

    def report(first: str, second: str, message: str) -> None:
        later = settings[second] if settings[second].source.kind != "default" else settings[first]
        problems.append(_mistake(later, message))

    if settings["HARP_CONGESTION"].value == "dctcp" and settings["HARP_ECN"].value == "off":
        report("HARP_CONGESTION", "HARP_ECN", "congestion = dctcp needs ECN: ecn must not be off")
    low, high = settings["HARP_PORT_MIN"].value, settings["HARP_PORT_MAX"].value
    if isinstance(low, int) and isinstance(high, int) and low > high:
        report("HARP_PORT_MIN", "HARP_PORT_MAX", f"port_min = {low} is above port_max = {high}")
    if settings["HARP_SOCKET"].value == "" and len(str(settings["HARP_RUN_DIR"].value)) > 96:
        report("HARP_SOCKET", "HARP_RUN_DIR", "is too long for the path of a socket in it")


def _keep_encryption(
    settings: dict[str, Value], file: Mapping[str, Value], problems: list[Problem]
) -> None:
    """Report an environment or command line that disables encryption which harp.toml requires. The
    plugin does the same: config_keep_encryption() of plugin/process/config.c.
    """
    required = file.get(_ENCRYPT)
    if required is None or required.value != "aes-256-gcm":
        return
    if settings[_ENCRYPT].value == "off":
        message = f'= "off", and {required.source} requires encryption: unset it, or change that'
        problems.append(_mistake(settings[_ENCRYPT], message))
    elif settings[_ENCRYPT].value != required.value:
        settings[_ENCRYPT] = required


def _check_nic(nic: Mapping[str, Value], problems: list[Problem]) -> None:
    """Report contradictions within one [[nic]], and values without effect."""
    needs = (
        ("coalesce_rx_us", "coalesce", "set"),
        ("coalesce_tx_us", "coalesce", "set"),
        ("irq_cores", "irq_affinity", "cores"),
    )
    for name, switch, word in needs:
        if not nic[name].is_default and nic[switch].value != word:
            message = f'has no effect without {switch} = "{word}"'
            problems.append(_mistake(nic[name], message))
    if nic["irq_affinity"].value == "cores" and not nic["irq_cores"].value:
        message = '= "cores" needs irq_cores'
        problems.append(_mistake(nic["irq_affinity"], message))
    queues = nic["queues"].value
    for queue in nic["lease_queues"].value if isinstance(nic["lease_queues"].value, tuple) else ():
        if isinstance(queues, int) and isinstance(queue, int) and 0 < queues <= queue:
            message = f"names queue {queue}, and queues = {queues} numbers them 0 to {queues - 1}"
            problems.append(_mistake(nic["lease_queues"], message))
            break


# Keys of a port specification whose name in harp.toml differs.
_PORT_KEYS = {"ip": "addresses", "gw": "gateways", "route": "routes"}


def _check_port(port: Mapping[str, Value], problems: list[Problem]) -> None:
    """Report contradictions within one [[dpdk]], as harp_port_spec_parse() does."""
    try:
        port_spec(dpdk_view(port).spec())
    except ValueError as error:
        why = str(error).partition(": ")[2]
        key = why.partition("=")[0]
        value = port.get(_PORT_KEYS.get(key, key), port["device"])
        problems.append(_mistake(value, why, DPDK_TABLE))


def _check_unique(
    ports: list[dict[str, Value]], nics: list[dict[str, Value]], problems: list[Problem]
) -> None:
    """Report ports that share a name with a port or NIC, or an address with a port."""
    names: dict[str, Value] = {str(nic["ifname"].value): nic["ifname"] for nic in nics}
    owners: dict[str, Value] = {}
    for port in ports:
        name_value = port["name"] if port["name"].value else port["device"]
        name = str(port["name"].value) or port_name(str(port["device"].value))
        # Duplicates of a name or a device have been reported already.
        if name in names and names[name].key is not name_value.key:
            message = f"makes a second {name}: {names[name].source} has one; set name"
            problems.append(_mistake(name_value, message))
        names.setdefault(name, name_value)
        addresses = port["addresses"]
        for word in addresses.value if isinstance(addresses.value, tuple) else ():
            address = values.bare_address(str(word))
            if owners.get(address, addresses) is not addresses:
                message = f"names {address}, which is in {owners[address].source} already"
                problems.append(_mistake(addresses, message))
            owners.setdefault(address, addresses)


def _complete(keys: Iterable[Key], *layers: Mapping[str, Value]) -> dict[str, Value]:
    """Return one value for each key: from the first layer that has it, else the default."""
    result: dict[str, Value] = {}
    for key in keys:
        name = key.name if key.variable else key.key
        value = next((layer[name] for layer in layers if name in layer), None)
        result[name] = value or Value(key, values.preset(key))
    return result


def build(
    doc: document.Document | None,
    environ: Mapping[str, str],
    *,
    readers: Reader = ALL_READERS,
    settings: Mapping[str, str] | None = None,
) -> Config:
    """Build a configuration from these sources; settings: the command line's."""
    reading = Reading(doc or document.Document(""))
    problems = list(reading.problems)
    warnings: list[str] = []
    cli_values = _from_command_line(settings or {}, problems)
    environment_values = _from_environment(environ, readers, problems, warnings)
    global_values = _complete(global_keys(), cli_values, environment_values, reading.values)
    nics, ports = (
        [_complete(tables()[name].values(), element) for element in reading.arrays[name]]
        for name in (NIC_TABLE, DPDK_TABLE)
    )
    _check_global(global_values, problems)
    _keep_encryption(global_values, reading.values, problems)
    for nic in nics:
        _check_nic(nic, problems)
    _check_unique(ports, nics, problems)
    for port in ports if not problems else ():
        _check_port(port, problems)
    if problems:
        raise ConfigError(sorted(problems, key=lambda problem: problem.position))
    return Config(
        values=MappingProxyType(global_values),
        nic_values=tuple(map(MappingProxyType, nics)),
        dpdk_values=tuple(map(MappingProxyType, ports)),
        file=doc.file if doc else "",
        warnings=tuple(warnings),
    )


def load(
    path: Path | str | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    readers: Reader = ALL_READERS,
    settings: Mapping[str, str] | None = None,
) -> Config:
    """Load the configuration: command line (`settings`) over environment over file over default.

    Without a path, read HARP_CONFIG, else /etc/harp/harp.toml; only the latter may be absent.
    Variables of other readers are ignored. harpd passes Reader.DAEMON, because job settings in its
    environment must not hide those of the file. ConfigError lists every problem.
    """
    environ = os.environ if environ is None else environ
    file, named = (Path(path), True) if path is not None else file_of(environ)
    doc: document.Document | None = None
    try:
        doc = document.read(file)
    except ConfigError as error:
        if named or os.path.lexists(file):
            problems: list[Problem] = list(error.problems)
            _from_command_line(settings or {}, problems)
            _from_environment(environ, readers, problems, [])
            raise ConfigError(problems, error.code) from None
    return build(doc, environ, readers=readers, settings=settings)


def parse(text: str, file: str = "harp.toml", environ: Mapping[str, str] | None = None) -> Config:
    """Return the configuration of a text; file: its name in messages. ConfigError."""
    return build(document.parse(file, text), environ or {})
