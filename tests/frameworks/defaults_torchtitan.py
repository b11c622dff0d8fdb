"""Keys, defaults and model flavors of torchtitan, from its unpacked wheel: FOLDER VERSION."""

import ast

from sources import classes, command_line, constants, evaluate, fields, nested, write


def flavors(tree, found):
    """Model sizes: `<model>.<flavor>` → fields, from tables such as `llama3_args = {"8B": TransformerModelArgs(…)}`."""
    out = {}
    for path in tree.paths("torchtitan"):
        if "/models/" not in path and "/experiments/" not in path:
            continue
        module = tree.module(path)
        for node in module.body:
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)):
                continue
            table = ast.unparse(node.targets[0])
            for key, value in zip(node.value.keys, node.value.values):
                if not (isinstance(key, ast.Constant) and isinstance(value, ast.Call)):
                    continue
                name = ast.unparse(value.func).split(".")[-1]
                if not name.endswith(("Args", "Config")):
                    continue
                sizes = {}
                if name in found:
                    for k, (_, default, _, _) in fields(found, found[name]).items():
                        sizes[k] = default.get("default", default.get("computed"))
                sizes.update(call(value, module))
                out[f"{table}.{key.value}"] = {"class": name, **sizes, "at": f"{path}:{key.lineno}"}
    return out


def call(node, module):
    """The keywords of a constructor call; a nested call becomes a nested table."""
    names, out = constants(module), {}
    for keyword in node.keywords:
        if keyword.arg is None:
            continue
        try:
            out[keyword.arg] = evaluate(keyword.value, names)
        except ValueError:
            inner = isinstance(keyword.value, ast.Call) and keyword.value.keywords
            out[keyword.arg] = call(keyword.value, module) if inner else ast.unparse(keyword.value)
    return out


def main():
    tree, version = command_line("defaults_torchtitan.py FOLDER VERSION")
    found = classes(tree, tree.paths("torchtitan"))
    source = f"torchtitan {version} from the package registry"
    if "Trainer.Config" in found:  # since 0.3 a configuration is a Python object
        keys = nested(found, found["Trainer.Config"], closed=("model_spec",))
        others = {}
        for name, owner in sorted(found.items()):
            if name.endswith(".Config") and "/experiments/" not in owner.path and "/flux/" not in owner.path:
                for key, (kind, default, _, where) in fields(found, owner).items():
                    others[f"{name}.{key}"] = {"type": kind, **default, "at": where}
        write("torchtitan", version, source, keys, parts=others)
    else:
        path = "torchtitan/config/job_config.py"
        path = path if (tree.root / path).exists() else "torchtitan/config_manager.py"
        keys = nested(classes(tree, [path]), classes(tree, [path])["JobConfig"])
        write("torchtitan", version, source, keys, flavors=flavors(tree, found))


if __name__ == "__main__":
    main()
