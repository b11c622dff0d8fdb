"""What accelerate makes of a configuration file: SOURCE NAME[@PROCESSES]…

As `accelerate launch --config_file` does, the file's keys become the launcher's arguments and then environment
variables, and the plugins read these. Runs in an environment that has accelerate.
"""

import os
import sys

import resolved


def main():
    source, *names = sys.argv[1:]
    import torch
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    torch.cuda.is_available, torch.cuda.current_device = lambda: True, lambda: 0  # a plugin names the device it would use
    untouched = dict(os.environ)
    for item in names:
        name, _, processes = item.partition("@")
        os.environ.clear()
        os.environ.update(untouched)
        path = resolved.IMPORT / "configs" / "accelerate" / f"{name}.yaml"
        try:
            args = launch_command_parser().parse_args(["--config_file", str(path), *(["--num_processes", processes] if processes else []), "train.py"])
            args, _, _ = _validate_launch_command(args)
            environment = {k: v for k, v in prepare_multi_gpu_env(args).items() if untouched.get(k) != v}
            os.environ.update(environment)
            keys = {"environment": environment, "num_processes": args.num_processes, "num_machines": args.num_machines, "mixed_precision": args.mixed_precision}
            keys["fsdp"] = resolved.plain(FullyShardedDataParallelPlugin())
            if os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true":
                keys["parallelism"] = resolved.plain(ParallelismConfig())
        except (Exception, SystemExit) as why:
            resolved.failed("accelerate", name, why)
            continue
        resolved.write("accelerate", name, source, keys)


if __name__ == "__main__":
    main()
