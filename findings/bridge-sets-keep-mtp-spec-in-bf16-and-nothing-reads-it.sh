#!/usr/bin/env bash
# Library: Megatron-Bridge 0.6.2 with Megatron-Core 0.19.2. Their source is read; nothing of it runs.
#
# Behaviour: every Nemotron recipe with multi-token prediction sets model.keep_mtp_spec_in_bf16 = True, the provider has the field, and the bridge
# from Hugging Face carries it over. No code of either package ever reads the field: modules that predict tokens further ahead multiply in
# the recipe's fp8 or NVFP4, as the blocks before them do.
#
# Seen: 21 lines name it: one declares it, 20 assign it, and the only read is of the Hugging Face config that it is copied from. Megatron-Core has no
# such word. Its neighbour mtp_use_repeated_layer, for comparison, is read in Megatron-Core.
#
# Guess: with the switch on, the linears of these modules are in bf16.
#
# Why it matters: a run whose loss is watched for the precision of its last modules trains them in eight bits or four. Who prices the step with bf16 there
# is wrong, too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --dest "$folder" megatron-bridge==0.6.2 megatron-core==0.19.2
cat > "$folder/reads.py" <<'PY'
import ast, pathlib, sys, zipfile

def uses(wheel, name):
    """Lines that assign the attribute or declare it, and that read it of anything."""
    written, read = 0, 0
    with zipfile.ZipFile(wheel) as files:
        for file in files.namelist():
            if not file.endswith(".py"):
                continue
            for node in ast.walk(ast.parse(files.read(file))):
                if isinstance(node, ast.Attribute) and node.attr == name:
                    if isinstance(node.ctx, ast.Store):
                        written += 1
                    else:
                        read += 1
                elif isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == name:
                    written += 1
                elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr" and len(node.args) > 1:
                    # Of the configuration that it is copied from, by name.
                    of = getattr(node.args[0], "id", "")
                    read += getattr(node.args[1], "value", None) == name and of != "hf_config"
    return written, read

folder = pathlib.Path(sys.argv[1])
bridge, core = (next(folder.glob(f"{name}-*.whl")) for name in ("megatron_bridge", "megatron_core"))
written, read = uses(bridge, "keep_mtp_spec_in_bf16")
in_core = uses(core, "keep_mtp_spec_in_bf16")
neighbour = uses(core, "mtp_use_repeated_layer")[1]
print(f"keep_mtp_spec_in_bf16: written {written} times in Megatron-Bridge, read {read} times; in Megatron-Core {sum(in_core)} times")
print(f"mtp_use_repeated_layer: read {neighbour} times in Megatron-Core")
same = written >= 20 and read == 0 and sum(in_core) == 0 and neighbour > 0
print("as described" if same else "CHANGED")
sys.exit(not same)
PY
python3 "$folder/reads.py" "$folder"
