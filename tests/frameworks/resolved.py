"""Writes what a framework makes of a configuration: tests/import/resolved/<framework>/<name>.json."""

import dataclasses
import enum
import json
import pathlib

IMPORT = pathlib.Path(__file__).parent.parent / "import"


def plain(value):
    """A value as JSON has it: dataclasses and enums by their fields and names, the rest as text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if not dataclasses.fields(value):
            return type(value).__name__
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(v) for v in value]
    if isinstance(value, type) or callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return str(value)


def flat(value, prefix=""):
    """Nested tables as dotted keys."""
    if isinstance(value, dict) and value:
        return {k: v for key, inner in value.items() for k, v in flat(inner, f"{prefix}{key}.").items()}
    return {prefix[:-1]: value}


def write(framework, name, source, keys, **more):
    """One key a line, so that a difference between releases reads as one."""
    path = IMPORT / "resolved" / framework / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"framework": framework, "source": source, **more}
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
    rows = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in flat(plain(keys)).items())
    path.write_text("{\n" + ",\n".join(lines) + ',\n  "keys": {\n' + rows + "\n  }\n}\n")
    json.loads(path.read_text())
    print(f"{framework}/{name}: {rows.count(chr(10)) + 1} keys")


def failed(framework, name, error):
    """A configuration that the framework refuses: the refusal is a result too."""
    text = " ".join(str(error).split())
    path = IMPORT / "resolved" / framework / f"{name}.refused.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"framework": framework, "refused": type(error).__name__ + ": " + text[:90]}, indent=2) + "\n")
    print(f"{framework}/{name}: refused: {text[:150]}")
