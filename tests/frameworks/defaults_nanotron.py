"""Keys and defaults of nanotron, from its unpacked wheel or a checkout's src folder: FOLDER VERSION."""

from sources import classes, command_line, fields, nested, write


def main():
    tree, version = command_line("defaults_nanotron.py FOLDER VERSION")
    found = classes(tree, tree.paths("nanotron/config"))
    keys = nested(found, found["Config"])
    parts = {}
    for name in ("LlamaConfig", "Qwen2Config", "Starcoder2Config", "MoEConfig"):
        if name in found:
            for key, (kind, default, _, where) in fields(found, found[name]).items():
                parts[f"{name}.{key}"] = {"type": kind, **default, "at": where}
    write("nanotron", version, f"nanotron {version}", keys, parts=parts)


if __name__ == "__main__":
    main()
