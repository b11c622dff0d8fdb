"""Flags and defaults of Megatron-LM, from a checkout of its repository: FOLDER VERSION.

Builds the framework's own argument parser, so it runs in an environment that imports Megatron: torch, numpy, six and
regex are enough, on a machine without GPUs. Places come from the sources.
"""

import argparse
import ast
import enum
import sys

from sources import arguments, classes, command_line, fields, write

ARGUMENTS = "megatron/training/arguments.py"
CORE = {
    "ModelParallelConfig": "megatron/core/model_parallel_config.py",
    "TransformerConfig": "megatron/core/transformer/transformer_config.py",
    "MLATransformerConfig": "megatron/core/transformer/transformer_config.py",
    "DistributedDataParallelConfig": "megatron/core/distributed/distributed_data_parallel_config.py",
    "OptimizerConfig": "megatron/core/optimizer/optimizer_config.py",
}


def groups(tree):
    """Names of the dataclasses that the parser turns into flags."""
    calls = [n for n in ast.walk(tree.module(ARGUMENTS)) if isinstance(n, ast.Call)]
    return [ast.unparse(n.args[0]) for n in calls if ast.unparse(n.func) == "ArgumentGroupFactory"]


def renamed(owner):
    """Fields whose metadata names another destination: destination → where."""
    out = {}
    for node in ast.walk(owner.node):
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            for inner in ast.walk(node.value):
                if isinstance(inner, ast.Dict):
                    pairs = {ast.unparse(k).strip("'"): v for k, v in zip(inner.keys, inner.values) if k is not None}
                    if isinstance(pairs.get("dest"), ast.Constant):
                        out[pairs["dest"].value] = owner.at(node)
    return out


def places(tree):
    """Destination → where the sources give its default."""
    found = classes(tree, tree.paths("megatron/training") + sorted(set(CORE.values())))
    out = {}
    for name in groups(tree):
        if name in found:
            out.update({key: where for key, (_, _, _, where) in fields(found, found[name]).items()})
            out.update(renamed(found[name]))
    out.update({key: entry["at"] for key, entry in arguments(tree, ARGUMENTS).items()})
    return out


def plain(value):
    """A default as JSON has it."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def flags(tree):
    """Destination → its flags and default, from the parser itself."""
    sys.path.insert(0, str(tree.root))
    from megatron.training.arguments import add_megatron_arguments

    where = places(tree)
    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    out = {}
    for action in parser._actions:
        if action.dest == "help":
            continue
        kind = {"_StoreTrueAction": "flag", "_StoreFalseAction": "flag", "BooleanOptionalAction": "flag"}.get(
            type(action).__name__, getattr(action.type, "__name__", "str")
        )
        entry = out.setdefault(action.dest, {"type": kind, "default": plain(parser.get_default(action.dest))})
        entry.setdefault("flags", []).extend(action.option_strings)
        if type(action).__name__ == "_StoreFalseAction":
            entry.setdefault("negating", []).extend(action.option_strings)
        if action.nargs is not None and action.nargs != 0:
            entry["nargs"] = action.nargs
        if action.choices:
            entry["choices"] = [plain(c) for c in action.choices]
        if not isinstance(action, argparse._StoreFalseAction) and action.required:
            entry["required"] = True
        entry["at"] = where.get(action.dest, ARGUMENTS)
    return out


def core(tree):
    """Fields of the dataclasses that the library is configured with."""
    found = classes(tree, sorted(set(CORE.values())))
    out = {}
    for name in CORE:
        for key, (kind, default, _, where) in fields(found, found[name]).items():
            if where.startswith(CORE[name]) or name != "TransformerConfig":
                out[f"{name}.{key}"] = {"type": kind, **default, "at": where}
    return out


def main():
    tree, version = command_line("defaults_megatron.py FOLDER VERSION")
    has_parser = (tree.root / ARGUMENTS).exists()  # a wheel has the library only
    source = f"NVIDIA/Megatron-LM core_v{version}" if has_parser else f"megatron-core {version} from the package registry"
    name = "megatron" if has_parser else "megatron-core"
    write(name, version, source, flags(tree) if has_parser else core(tree))


if __name__ == "__main__":
    main()
