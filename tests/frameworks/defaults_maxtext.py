"""Keys and defaults of MaxText, from its unpacked wheel: FOLDER VERSION. Needs PyYAML.

`configs/base.yml` gives the defaults; `configs/types.py` gives types, and defaults of keys that base.yml leaves out.
`configs/models/*.yml` gives the sizes that `model_name` stands for.
"""

import yaml

from sources import classes, command_line, fields, write

CONFIGS = "maxtext/configs"


class Loader(yaml.SafeLoader):
    """YAML without dates, so that every value is JSON."""


Loader.yaml_implicit_resolvers = {
    first: [r for r in rules if r[0] != "tag:yaml.org,2002:timestamp"] for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def document(tree, path):
    """Top-level keys of a YAML file: key → (value, where)."""
    text = (tree.root / path).read_text()
    loader = Loader(text)
    root = loader.get_single_node()
    return {k.value: (loader.construct_object(v, deep=True), f"{path}:{k.start_mark.line + 1}") for k, v in (root.value if root else [])}


def main():
    tree, version = command_line("defaults_maxtext.py FOLDER VERSION")
    found = classes(tree, [f"{CONFIGS}/types.py"])
    types = fields(found, found["MaxTextConfig"])
    keys = {}
    for key, (value, where) in document(tree, f"{CONFIGS}/base.yml").items():
        keys[key] = {"type": types[key][0] if key in types else "", "default": value, "at": where}
    for key, (kind, default, _, where) in types.items():
        keys.setdefault(key, {"type": kind, **default, "at": where})
    models = {}
    for path in tree.paths(f"{CONFIGS}/models", ".yml"):
        name = path.rsplit("/", 1)[1].removesuffix(".yml")
        models[name] = {**{k: v for k, (v, _) in document(tree, path).items()}, "at": path}
    write("maxtext", version, f"maxtext {version} from the package registry", keys, models=models)


if __name__ == "__main__":
    main()
