"""What MaxText makes of a YAML file or a launch script: FOLDER SOURCE NAME@TOPOLOGY*SLICES….

FOLDER holds an unpacked wheel. A script is run by bash with `python3` printing its arguments. The machine is one of
MaxText's own topologies (`v5p-128`, `v6e-256`, `a3` for eight GPUs), as for its ahead-of-time compiler. Needs what
MaxText's configuration imports: jax, flax, omegaconf, pydantic, aqtp, orbax-checkpoint, pathwaysutils.
"""

import pathlib
import shlex
import subprocess
import sys

import resolved

# Beginnings of names without effect on memory or time.
SILENT = tuple(
    """
    run_name base_output tensorboard profiler skip_first upload tokenizer dataset hf_ tfds grain gcs log_ metrics goodput monitor
    enable_goodput vertex xprof ml_diag managed_mldiagnostics mllog enable_mllog debug stack_trace dump_ jax_ compile_
    checkpoint load_ save_ enable_checkpoint async_checkpoint local_checkpoint standalone emergency elastic
    eval generate prompt inference decode prefill ar_cache kv_quant learning_rate cosine wsd warmup adam_weight
    logical_axis_rules constant_bound distill student teacher rl grpo dpo lora audio image video vision vit omni
    """.split()
)


def arguments(name, configs):
    """The configuration file and the key=value arguments behind it."""
    path = resolved.IMPORT / "configs" / "maxtext" / f"{name}.yml"
    if path.exists():
        return str(path), []
    path = path.with_suffix(".sh")
    program = 'OUTPUT_PATH=out; python3() { printf "%s\\n" "$@"; }; source ' + shlex.quote(str(path))
    lines = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.splitlines()
    return str(configs / lines[2]), lines[3:]


def main():
    folder, source, *names = sys.argv[1:]
    sys.path.insert(0, folder)
    from maxtext.configs import pyconfig
    from maxtext.utils import max_utils

    configs = pathlib.Path(folder) / "maxtext" / "configs"
    for item in names:
        name, machine = item.split("@")
        topology, slices = machine.split("*")
        try:
            config, given = arguments(name, configs)
            given += [f"compile_topology={topology}", f"compile_topology_num_slices={slices}", "skip_jax_distributed_system=true"]
            given += [] if any(g.startswith("run_name=") for g in given) else ["run_name=run"]
            given += [] if any(g.startswith("base_output_directory=") for g in given) else ["base_output_directory=out"]
            values = dict(pyconfig.initialize_pydantic(["train", config, *given]))
        except (Exception, SystemExit) as why:
            resolved.failed("maxtext", name, why)
            continue
        devices = values["num_target_devices"]
        keys = {k: v for k, v in values.items() if not k.startswith(SILENT)}
        axes = [a for a in values["mesh_axes"]]
        ici = max_utils.fill_unspecified_mesh_axes(list(values["ici_parallelism"]), devices // int(slices), "ICI")
        dcn = max_utils.fill_unspecified_mesh_axes(list(values["dcn_parallelism"]), int(slices), "DCN")
        keys["mesh"] = {"ici": {a: n for a, n in zip(axes, ici) if n > 1}, "dcn": {a: n for a, n in zip(axes, dcn) if n > 1}}
        resolved.write("maxtext", name, source, keys, topology=topology, slices=int(slices))


if __name__ == "__main__":
    main()
