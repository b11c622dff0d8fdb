"""Keys and defaults of axolotl, from its unpacked wheel: FOLDER VERSION."""

from sources import classes, command_line, nested, write


def main():
    tree, version = command_line("defaults_axolotl.py FOLDER VERSION")
    found = classes(tree, tree.paths("axolotl/utils/schemas"))
    keys = nested(found, found["AxolotlInputConfig"])
    write("axolotl", version, f"axolotl {version} from the package registry", keys)


if __name__ == "__main__":
    main()
