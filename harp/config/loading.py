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
from harp.config.model import Config, DpdkConfig, Source, Value, dpdk_view, port_name
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
    found: dict[str, Value] = {}
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
                found[name] = Value(key, values.from_text(text, key), Source("environment"))
            except ValueError as error:
                problems.append(Problem(_ENVIRONMENT, name, f"= {values.quote(text)}: {error}"))
    return found


def _from_command_line(settings: Mapping[str, str], problems: list[Problem]) -> dict[str, Value]:
    found: dict[str, Value] = {}
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
            found[key.name] = Value(key, values.from_text(text, key), Source("command line"))
        except ValueError as error:
            problems.append(Problem(COMMAND_LINE, key.place, f"= {values.quote(text)}: {error}"))
    return found


def _mistake(value: Value, message: str, key: str = "") -> Problem:
    return Problem(str(value.source), key or value.key.place, message)


def _together(found: Mapping[str, Value], problems: list[Problem]) -> None:

    def report(first: str, second: str, message: str) -> None:
        later = found[second] if found[second].source.kind != "default" else found[first]
        problems.append(_mistake(later, message))

    if found["HARP_CONGESTION"].value == "dctcp" and found["HARP_ECN"].value == "off":
        report("HARP_CONGESTION", "HARP_ECN", "congestion = dctcp needs ECN: ecn must not be off")
    low, high = found["HARP_PORT_MIN"].value, found["HARP_PORT_MAX"].value
    if isinstance(low, int) and isinstance(high, int) and low > high:
        report("HARP_PORT_MIN", "HARP_PORT_MAX", f"port_min = {low} is above port_max = {high}")
    if found["HARP_SOCKET"].value == "" and len(str(found["HARP_RUN_DIR"].value)) > 96:
        report("HARP_SOCKET", "HARP_RUN_DIR", "is too long for the path of a socket in it")


def _keep_encryption(
    found: dict[str, Value], file: Mapping[str, Value], problems: list[Problem]
) -> None:
    """Report an environment or a command line that disables encryption which harp.toml requires,
    like config_keep_encryption() of plugin/process/config.c.
    """
    required = file.get(_ENCRYPT)
    if required is None or required.value != "aes-256-gcm":
        return
    if found[_ENCRYPT].value == "off":
        message = f'= "off", and {required.source} requires encryption: unset it, or change that'
        problems.append(_mistake(found[_ENCRYPT], message))
    elif found[_ENCRYPT].value != required.value:
        found[_ENCRYPT] = required


def _nic_together(nic: Mapping[str, Value], problems: list[Problem]) -> None:
    """The same for one [[nic]]: a value without effect is a mistake."""
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


def _port_whole(port: Mapping[str, Value], config: DpdkConfig, problems: list[Problem]) -> None:
    """Report contradictions between the keys of one [[dpdk]], as harp_port_spec_parse() does."""
    try:
        port_spec(config.spec())
    except ValueError as error:
        why = str(error).partition(": ")[2]
        key = why.partition("=")[0]
        value = port.get(_PORT_KEYS.get(key, key), port["device"])
        problems.append(_mistake(value, why, DPDK_TABLE))


def _ports_together(
    ports: list[dict[str, Value]], nics: list[dict[str, Value]], problems: list[Problem]
) -> None:
    """Check that names are unique, also among NICs, and that addresses are not shared."""
    called: dict[str, Value] = {str(nic["ifname"].value): nic["ifname"] for nic in nics}
    owned: dict[str, Value] = {}
    for port in ports:
        named = port["name"] if port["name"].value else port["device"]
        name = str(port["name"].value) or port_name(str(port["device"].value))
        # Duplicates of a name or a device have been reported already.
        if name in called and called[name].key is not named.key:
            message = f"makes a second {name}: {called[name].source} has one; set name"
            problems.append(_mistake(named, message))
        called.setdefault(name, named)
        addresses = port["addresses"]
        for word in addresses.value if isinstance(addresses.value, tuple) else ():
            address = values.bare_address(str(word))
            if owned.get(address, addresses) is not addresses:
                message = f"names {address}, which is in {owned[address].source} already"
                problems.append(_mistake(addresses, message))
            owned.setdefault(address, addresses)


def _complete(keys: Iterable[Key], *layers: Mapping[str, Value]) -> dict[str, Value]:
    """Return one value for each key: from the first layer that has it, else the default."""
    result: dict[str, Value] = {}
    for key in keys:
        name = key.name if key.variable else key.key
        found = next((layer[name] for layer in layers if name in layer), None)
        result[name] = found or Value(key, values.preset(key))
    return result


def build(
    doc: document.Document | None,
    environ: Mapping[str, str],
    *,
    readers: Reader = ALL_READERS,
    settings: Mapping[str, str] | None = None,
) -> Config:
    """Build a configuration from these sources, the command line's settings first."""
    reading = Reading(doc or document.Document(""))
    problems = list(reading.problems)
    warnings: list[str] = []
    cli_values = _from_command_line(settings or {}, problems)
    environment_values = _from_environment(environ, readers, problems, warnings)
    found = _complete(global_keys(), cli_values, environment_values, reading.values)
    nics, ports = (
        [_complete(tables()[name].values(), each) for each in reading.arrays[name]]
        for name in (NIC_TABLE, DPDK_TABLE)
    )
    _together(found, problems)
    _keep_encryption(found, reading.values, problems)
    for nic in nics:
        _nic_together(nic, problems)
    _ports_together(ports, nics, problems)
    for port in ports if not problems else ():
        _port_whole(port, dpdk_view(port), problems)
    if problems:
        raise ConfigError(sorted(problems, key=lambda problem: problem.position))
    return Config(
        values=MappingProxyType(found),
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

    Without a path the file is HARP_CONFIG's, or /etc/harp/harp.toml; only the latter may be absent.
    Variables of other readers are ignored. harpd passes Reader.DAEMON, because job settings in its
    environment must not hide those of the file. ConfigError lists every problem.
    """
    environ = os.environ if environ is None else environ
    chosen, named = (Path(path), True) if path is not None else file_of(environ)
    doc: document.Document | None = None
    try:
        doc = document.read(chosen)
    except ConfigError as error:
        if named or os.path.lexists(chosen):
            problems: list[Problem] = list(error.problems)
            _from_command_line(settings or {}, problems)
            _from_environment(environ, readers, problems, [])
            raise ConfigError(problems, error.code) from None
    return build(doc, environ, readers=readers, settings=settings)


def parse(text: str, file: str = "harp.toml", environ: Mapping[str, str] | None = None) -> Config:
    """Return the configuration of a text, which messages call `file`. ConfigError."""
    return build(document.parse(file, text), environ or {})
