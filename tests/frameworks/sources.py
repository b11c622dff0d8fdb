"""Reads keys and defaults from a framework's Python sources, without running them.

A default has one of four forms in the tables:
  {"default": VALUE}      a literal, or a name that the sources bind to one
  {"computed": "TEXT"}    an expression; only the framework can evaluate it
  {"required": true}      no default: the framework asks for the key
  {"unset": true}         the key may be absent, and then nothing is bound to it
"""

import ast
import json
import os
import pathlib
import sys


class Tree:
    """An unpacked package: its modules, parsed once, by path relative to the root."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.modules = {}

    def module(self, path):
        if path not in self.modules:
            self.modules[path] = ast.parse((self.root / path).read_text())
        return self.modules[path]

    def paths(self, under, suffix=".py"):
        folder = self.root / under
        found = [folder] if folder.is_file() else sorted(folder.rglob("*" + suffix))
        return [str(p.relative_to(self.root)) for p in found]


class Class:
    """A class definition, where it is written, and its name with the classes around it."""

    def __init__(self, path, node, name, module):
        self.path, self.node, self.name, self.module = path, node, name, module
        self.bases = [ast.unparse(b) for b in node.bases]

    def at(self, node):
        return f"{self.path}:{node.lineno}"


def classes(tree, paths):
    """Every class of these modules, by qualified name. The first of a name wins."""
    found = {}
    for path in paths:
        module = tree.module(path)

        def visit(body, prefix):
            for node in body:
                if isinstance(node, ast.ClassDef):
                    name = prefix + node.name
                    found.setdefault(name, Class(path, node, name, module))
                    visit(node.body, name + ".")
                elif isinstance(node, (ast.If, ast.Try)):
                    visit(node.body, prefix)

        visit(module.body, "")
    return found


def constants(module):
    """Names that a module binds to literals."""
    names = {}
    for node in module.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    try:
                        names[target.id] = evaluate(node.value, names)
                    except ValueError:
                        pass
    return names


OPERATORS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
}


CASTS = {"float": float, "int": int, "pp_int": int}  # pp_int is DeepSpeed's int with another repr


def evaluate(node, names=()):
    """A literal, arithmetic on literals, or a known name; else ValueError."""
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](evaluate(node.left, names), evaluate(node.right, names))
    if isinstance(node, ast.Call) and ast.unparse(node.func) in CASTS and node.args:
        try:
            return CASTS[ast.unparse(node.func)](evaluate(node.args[0], names))
        except (TypeError, ValueError) as why:
            raise ValueError(why)
    try:
        value = ast.literal_eval(node)
        json.dumps(value)
        return value
    except (ValueError, TypeError, SyntaxError):
        raise ValueError(ast.unparse(node))


def form(node, names=()):
    """The default that an expression stands for, in one of the forms above."""
    if node is None:
        return {"required": True}
    try:
        return {"default": evaluate(node, names)}
    except ValueError:
        return {"computed": ast.unparse(node)}


EMPTY = {"list": [], "dict": {}, "set": []}
FIELDS = ("field", "Field", "dataclasses.field", "pydantic.Field")


def field_default(value, names):
    """What `= value` in a class body says, and the name of its factory if it has one."""
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) in FIELDS):
        return form(value, names), None
    keywords = {k.arg: k.value for k in value.keywords}
    first = value.args[0] if value.args else keywords.get("default")
    if first is not None and not (isinstance(first, ast.Constant) and first.value is Ellipsis):
        return form(first, names), None
    factory = keywords.get("default_factory")
    if factory is None:
        return {"required": True}, None
    if isinstance(factory, ast.Lambda):
        return form(factory.body, names), None
    name = ast.unparse(factory)
    return ({"default": EMPTY[name]} if name in EMPTY else {"computed": name + "()"}), name


def alias(value):
    """The key under which a pydantic field is written, where that is not its name."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) in FIELDS:
        for keyword in value.keywords:
            if keyword.arg == "alias" and isinstance(keyword.value, ast.Constant):
                return keyword.value.value
    return None


def annotated(node):
    """The type and the `Field(…)` of an `Annotated[type, Field(…)]`."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Annotated"):
        inner = [e for e in node.slice.elts[1:] if isinstance(e, ast.Call)]
        return node.slice.elts[0], inner[0] if inner else None
    return node, None


def fields(found, owner, seen=()):
    """Fields of a class, bases first: name → (type, default, factory, where)."""
    out = {}
    for base in owner.bases:
        base = base.split("[")[0]
        near = owner.name.rsplit(".", 1)[0] + "." + base
        for name in (near, base, base.split(".")[-1]):
            if name in found and name not in seen and found[name] is not owner:
                out.update(fields(found, found[name], (*seen, owner.name)))
                break
    names = constants(owner.module)
    for node in owner.node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kind = ast.unparse(node.annotation)
            if kind.startswith(("ClassVar", "InitVar")) or node.target.id.startswith("_") or node.target.id == "model_config":
                continue
            default, factory = field_default(node.value, names)
            key = alias(node.value) or node.target.id
            inner, extra = annotated(node.annotation)
            out[key] = (ast.unparse(inner), default, factory, owner.at(node))
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id in out:
                default, factory = field_default(node.value, names)
                out[target.id] = (out[target.id][0], default, factory, owner.at(node))
    return out


def nested(found, owner, prefix="", seen=(), closed=()):
    """Fields of a class and of the classes of its fields, as dotted keys; `[]` marks a list of such a class.

    Fields named in `closed` are not looked into.
    """
    keys = {}
    for name, (kind, default, factory, where) in fields(found, owner).items():
        if name in closed:
            keys[prefix + name] = {"type": kind, **default, "at": where}
            continue
        inner = [c for c in ([factory] if factory in found else candidates(kind)) if c in found and not is_enum(found[c])]
        inner = [c for c in dict.fromkeys(inner) if c not in seen and c != owner.name and fields(found, found[c])]
        if inner:
            optional = default.get("default", 0) is None or "None" in kind.split(" | ") or kind.startswith("Optional")
            many = "[]" if kind.startswith(("list", "List")) else ""
            for choice in inner:
                for key, entry in nested(found, found[choice], f"{prefix}{name}{many}.", (*seen, owner.name), closed).items():
                    keys.setdefault(key, entry)
            if (many or optional) and "default" in default:
                keys[prefix + name] = {"type": kind, **default, "at": where}
        else:
            keys[prefix + name] = {"type": kind, **default, "at": where}
    return keys


def is_enum(owner):
    """Whether a class is an enumeration: its fields are values."""
    return any(base.split(".")[-1] in ("Enum", "IntEnum", "StrEnum") for base in owner.bases)


def candidates(kind):
    """The class names inside a type such as `Optional[X]`, `X | None` or `Annotated[X, …]`."""
    try:
        tree = ast.parse(kind, mode="eval")
    except SyntaxError:
        return []
    out = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            out.append(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            out.append(node.value)
    return out


def arguments(tree, path, function=None):
    """`add_argument` calls of a module: destination → flags, type, choices, default, where."""
    keys = {}
    module = tree.module(path)
    names = constants(module)
    for node in ast.walk(module):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"):
            continue
        flags = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if not flags:
            continue
        words = {k.arg: k.value for k in node.keywords}
        long = next((f for f in flags if f.startswith("--")), flags[0])
        dest = ast.literal_eval(words["dest"]) if "dest" in words else long.lstrip("-").replace("-", "_")
        action = ast.literal_eval(words["action"]) if isinstance(words.get("action"), ast.Constant) else None
        kind = ast.unparse(words["type"]) if "type" in words else {"store_true": "flag", "store_false": "flag"}.get(action, "str")
        if "default" in words:
            default = form(words["default"], names)
        elif action == "store_true":
            default = {"default": False}
        elif action == "store_false":
            default = {"default": True}
        elif "required" in words and ast.unparse(words["required"]) == "True":
            default = {"required": True}
        else:
            default = {"default": None}
        entry = {"flags": flags, "type": kind, **default, "at": f"{path}:{node.lineno}"}
        if action == "store_false":
            entry["negates"] = True
        if "choices" in words:
            entry["choices"] = form(words["choices"], names).get("default", ast.unparse(words["choices"]))
        keys[dest] = keys.get(dest, entry) if dest in keys and action == "store_false" else entry
    return keys


def write(framework, version, source, keys, **more):
    """Writes defaults/<framework>-<version>.json beside this file, one key a line. With CHECK=1 it compares instead."""
    path = pathlib.Path(__file__).parent / "defaults" / f"{framework}-{version}.json"
    head = {"framework": framework, "version": version, "source": source, **more}
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items() if not isinstance(v, dict)]
    for section, table in (("keys", keys), *((k, v) for k, v in more.items() if isinstance(v, dict))):
        rows = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in table.items())
        rows = rows.replace('"type": "", ', "")
        lines.append(f'  "{section}": {{\n{rows}\n  }}')
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    json.loads(text)
    if os.environ.get("CHECK"):
        old = path.read_text() if path.exists() else ""
        changed = sorted(set(text.splitlines()) ^ set(old.splitlines()))
        print(f"{path.name}: " + ("unchanged" if text == old else f"{len(changed)} lines differ, such as {changed[0].strip()[:120]}"))
        sys.exit(text != old)
    path.write_text(text)
    print(f"{path.name}: {len(keys)} keys")


def command_line(usage):
    """The folder of sources and the version from the command line."""
    if len(sys.argv) != 3:
        sys.exit(f"usage: {usage}")
    return Tree(sys.argv[1]), sys.argv[2]
