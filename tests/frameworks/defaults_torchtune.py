"""Keys that torchtune's recipes read, with the defaults of these reads, from its unpacked wheel: FOLDER VERSION.

A recipe's configuration has no table of defaults: a key counts where the recipe reads it, with `cfg.get(KEY, DEFAULT)`
or, required, with `cfg.KEY`. Models are functions; `models` has their sizes.
"""

import ast

from sources import command_line, constants, evaluate, form, write


def chain(node):
    """The attributes behind `cfg` or `self.cfg`: `cfg.dataset.packed` → ["dataset", "packed"]."""
    names = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id == "cfg":
        return names
    return names[1:] if isinstance(node, ast.Name) and node.id == "self" and names[:1] == ["cfg"] else None


def recipe(tree, path):
    """Keys of one recipe: key → default and where."""
    module, keys = tree.module(path), {}
    names = constants(module)
    calls = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop") and node.args:
            calls.add(id(node.func))
            owner, key = chain(node.func.value), form(node.args[0], names).get("default")
            if owner is not None and isinstance(key, str):
                default = form(node.args[1], names) if len(node.args) > 1 else {"default": None}
                keys.setdefault(".".join([*owner, key]), {"type": "", **default, "at": f"{path}:{node.lineno}"})
    inner = {id(n.value) for n in ast.walk(module) if isinstance(n, ast.Attribute)}
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and id(node) not in inner and id(node) not in calls:
            names_read = chain(node)
            if names_read and names_read[-1] not in ("get", "pop", "keys", "items"):
                keys.setdefault(".".join(names_read), {"type": "", "required": True, "at": f"{path}:{node.lineno}"})
    return keys


def models(tree):
    """Model builders that call their family's builder with literal sizes."""
    out = {}
    for path in tree.paths("torchtune/models"):
        if not path.endswith("_model_builders.py"):
            continue
        for node in tree.module(path).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for inner in ast.walk(node):
                if not (isinstance(inner, ast.Return) and isinstance(inner.value, ast.Call)):
                    continue
                sizes = {}
                for keyword in inner.value.keywords:
                    try:
                        sizes[keyword.arg] = evaluate(keyword.value)
                    except ValueError:
                        pass
                if "num_layers" in sizes:
                    family = path.split("/")[2]
                    out[f"torchtune.models.{family}.{node.name}"] = {"builder": ast.unparse(inner.value.func), **sizes, "at": f"{path}:{node.lineno}"}
    return out


def main():
    tree, version = command_line("defaults_torchtune.py FOLDER VERSION")
    keys = {}
    for path in sorted(tree.root.glob("recipes/*.py")):
        name = path.stem
        for key, entry in recipe(tree, f"recipes/{path.name}").items():
            keys[f"{name}:{key}"] = entry
    write("torchtune", version, f"torchtune {version} from the package registry", keys, models=models(tree))


if __name__ == "__main__":
    main()
