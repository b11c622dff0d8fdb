"""Checks the scripts of this folder without PyTorch: each parses, is short enough, and lists its points twice alike.

    python3 calibrate/torch/check.py
"""

import ast
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LONGEST = 250  # lines
PLANS = ("experts", "permutation", "steps", "fp8", "host", "power", "kernels")


def listed(name, *options):
    command = [sys.executable, str(HERE / f"{name}.py"), "--dry", *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if result.returncode:
        raise SystemExit(f"{name}.py --dry: {result.stderr.strip().splitlines()[-1]}")
    return result.stdout.splitlines()


def main():
    for path in sorted(HERE.glob("*.py")):
        text = path.read_text()
        tree = ast.parse(text, path.name)
        assert ast.get_docstring(tree), f"{path.name} does not say what it is"
        assert len(text.splitlines()) <= LONGEST, f"{path.name} has {len(text.splitlines())} lines, more than {LONGEST}"
    for name in PLANS:
        points = listed(name)
        assert points and len(points) == len(set(points)), f"{name}.py lists a point twice"
        assert points == listed(name), f"{name}.py lists other points the second time"
        other = listed(name, "--seed", "2")
        assert sorted(points) == sorted(other) and points != other, f"{name}.py: a seed changes the order alone"
        priorities = [int(line.split()[0]) for line in points]
        assert priorities == sorted(priorities), f"{name}.py takes points out of the order of their value"
        print(f"{name:12} {len(points):5} points, {len(listed(name, '--tiny')):3} tiny")


if __name__ == "__main__":
    main()
