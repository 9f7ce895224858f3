"""The configuration file of horovodrun: YAML in, settings out."""

import difflib

from rueda.compat.horovodrun_flags import FILE_KEYS
from rueda.compat.launch_plan import Refused, Setting

MOST_BYTES = 1 << 20
MOST_VALUES = 10_000  # with what aliases stand for


def read(path):
    """The file's content. `Refused` when it cannot be read, is none for settings, or PyYAML is not installed."""
    try:
        import yaml
    except ImportError:
        raise Refused(
            f"--config-file {path} needs PyYAML, which this Python does not have: "
            "pip install pyyaml, or give the settings as flags"
        ) from None
    try:
        with open(path, "rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise Refused(f"{path} is too long for a configuration file")
        content = yaml.safe_load(text.decode())
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"cannot read the configuration file {path}: {error}") from None
    except yaml.YAMLError as error:
        raise Refused(f"the configuration file {path} is not YAML: {error}") from None
    except RecursionError:
        raise Refused(f"the configuration file {path} is nested too deeply: sections of keys are expected") from None
    if _is_huge(content):
        raise Refused(
            f"the configuration file {path} has more than {MOST_VALUES} values, its aliases expanded: "
            "sections of keys are expected"
        )
    return content


def _is_huge(content):
    """Aliases make a short file large, or endless."""
    left, count = [content], 0
    while left:
        value = left.pop()
        if not isinstance(value, (dict, list, tuple, set)):
            continue
        count += len(value)
        if count > MOST_VALUES:
            return True
        left.extend(value.values() if isinstance(value, dict) else value)
    return False


def settings_of(config, path):
    """The settings of the file's content: (dict from dest to `Setting`, notes)."""
    settings, notes = {}, []
    if config is None:
        return settings, notes
    if not isinstance(config, dict):
        raise Refused(f"the configuration file {path} must be a mapping of sections")
    known = {(section, key): dest for section, key, dest in FILE_KEYS}
    sections = {section for section, _ in known}
    for section, content in config.items():
        if section == "controller":
            settings.update(_controller(content, path))
        elif section not in sections:
            notes.append(_unknown(section, [*sections, "controller"], path))
        elif content is not None and not isinstance(content, dict):
            raise Refused(f"{section} (in {path}): expected keys below it, found {content!r}")
        for key, value in (content or {}).items() if section in sections else ():
            dest, origin = known.get((section, key)), f"{section}.{key} (in {path})"
            if dest is None:
                keys = [f"{section}.{k}" for s, k in known if s == section]
                notes.append(_unknown(f"{section}.{key}", keys, path))
            elif value is not None:
                if dest == "no_stall_check" and isinstance(value, bool):
                    value = not value
                settings[dest] = Setting(value, origin)
    return settings, notes


def _controller(name, path):
    dests = {"gloo": "use_gloo", "mpi": "use_mpi"}
    if str(name).lower() not in dests:
        raise Refused(f"controller (in {path}): expected gloo or mpi, found {name!r}")
    return {dests[str(name).lower()]: Setting(True, f"controller: {name} (in {path})")}


def _unknown(name, known, path):
    close = difflib.get_close_matches(str(name), known, 1)
    return f"{name} (in {path}) is not known" + (f"; did you mean {close[0]}?" if close else "")
