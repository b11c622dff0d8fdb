"""Trains Llamas of a few blocks on one GPU and writes receipts that `windtunnel check` holds predictions against.

    python make.py receipts.jsonl --minutes 10

needs nothing but PyTorch (2.6 or newer). The most valuable configurations come first; started again with the same file,
it goes on where it stopped. Each receipt is written as soon as it is there, and beside the file a folder gets each as a
scenario. Exit code: 0 done or out of time, 1 a configuration failed or was refused, 2 bad input or no GPU, 130 interrupt.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

import write
from configurations import CONFIGURATIONS

GRACE = 240.0  # seconds beyond the time limit that a configuration may take to end (it may be compiling)
BUSY = 2 * 2**30  # bytes that a context of ours does not hold on an otherwise idle device


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, nargs="?", default=Path("receipts.jsonl"), help="file of receipts (JSON lines)")
    parser.add_argument("--minutes", type=float, default=30.0, help="time budget; default 30")
    parser.add_argument("--only", metavar="WORDS", help="configurations whose id has one of these words (a,b,…)")
    parser.add_argument("--clocks", choices=["burst", "sustained"], help="only this regime")
    parser.add_argument("--sustained-seconds", type=float, help="soak and window together; default 90")
    parser.add_argument("--topology", help="the board's topology, where its name is not known (see the README)")
    parser.add_argument("--process-group", choices=["nccl", "gloo", "fake"], default="nccl", help="of FSDP2's one rank")
    parser.add_argument("--memory-only", action="store_true", help="leave time and kernels out (a device that computes nothing)")
    parser.add_argument("--list", action="store_true", help="print the configurations and stop")
    return parser.parse_args()


def known(path):
    """Ids of the file; a last line that was cut off is taken away, so that the file stays one of whole rows."""
    if not path.exists():
        return set()
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        print(f"{path}: the last line was cut off and is taken away; its configuration runs again")
        with path.open("r+b") as file:
            file.truncate(len(whole))
    ids = set()
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            ids.add(json.loads(line)["id"])
        except (ValueError, KeyError, TypeError) as error:
            refuse(f"{path}:{number}: no receipt ({error}): move the file away, or mend the line")
    return ids


def append(path, receipt):
    with path.open("a") as file:
        file.write(json.dumps(receipt) + "\n")
        file.flush()
        os.fsync(file.fileno())


def fly(context, c, options, limit):
    """One configuration in its own process; what it answered."""
    here, there = context.Pipe(duplex=False)
    args = (there, c, options.process_group, options.memory_only, options.sustained_seconds)
    import measure

    process = context.Process(target=measure.child, args=args, daemon=True)
    process.start()
    there.close()
    try:
        answer = here.recv() if here.poll(limit) else {"failed": f"not done after {limit:.0f} s"}
    except EOFError:
        process.join()
        answer = {"failed": f"the process died (exit code {process.exitcode})"}
    finally:
        if process.is_alive():
            process.join(2)
        if process.is_alive():
            process.kill()
        process.join()
    return answer


def words(result):
    """One line about a result."""
    if "oom" in result:
        return "out of memory"
    memory = result["memory"]
    text = f"{memory['allocated'] / write.GIB:6.2f} GiB allocated {memory['reserved'] / write.GIB:6.2f} reserved"
    if "time" in result:
        t, board = result["time"], result["time"]["board"]
        text = f"{t['step_time_s'] * 1e3:8.2f} ms ({t['p10_s'] * 1e3:.2f} to {t['p90_s'] * 1e3:.2f}, {t['steps']} steps) {text}"
        if board:
            text += f"  {board.get('power_w', 0):.0f} W {board.get('sm_mhz', 0):.0f} MHz {board.get('temperature_c', 0):.0f} °C"
    return text


def chosen(options):
    parts = options.only.split(",") if options.only else [""]
    return [
        c
        for c in CONFIGURATIONS
        if any(part in c.id for part in parts) and options.clocks in (None, c.clocks)
    ]


def refuse(why):
    print(f"error: {why}", file=sys.stderr)
    sys.exit(2)


def device(context):
    """Name of the board, asked in a process of its own so that this one holds no context."""
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=ask, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        answer = here.recv()
    except EOFError:
        answer = {"error": "the process that looked for a GPU died"}
    process.join()
    if "error" in answer:
        refuse(f"{answer['error']}: receipts are measured on a CUDA GPU, with a PyTorch built for it")
    return answer


def ask(pipe):
    try:
        import torch

        free, total = torch.cuda.mem_get_info()
        pipe.send({"name": torch.cuda.get_device_name(), "used": total - free, "torch": torch.__version__})
    except Exception as error:
        pipe.send({"error": str(error).splitlines()[0]})


def main():
    options = arguments()
    todo = chosen(options)
    if not todo:
        refuse("no configuration has those words in its id: --list prints them")
    if options.list:
        print("\n".join(c.id for c in todo))
        return 0
    # A process per configuration, each from a server that has imported PyTorch and never touched the device.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["measure", "train", "breakdown"])
    board = device(context)
    family = write.hardware(board["name"], options.topology)[2]
    topology = write.hardware(board["name"], options.topology)[1]
    print(f"{board['name']}, PyTorch {board['torch']}: {len(todo)} configurations, {options.minutes:g} minutes")
    if board["used"] > BUSY:
        print(f"warning: {board['used'] / write.GIB:.1f} GiB of the device are taken by others: times and ends of memory will not be its own")
    if topology is None:
        print("warning: no topology is known for this board: give one with --topology, or the receipts cannot be predicted")
    done = known(options.output)
    folder = options.output.with_suffix("")
    start, written, bad = time.monotonic(), 0, 0
    code = 0
    try:
        for at, c in enumerate(todo, 1):
            if write.identity(c, family) in done:
                continue
            left = options.minutes * 60 - (time.monotonic() - start)
            if left <= 0:
                print(f"out of time: {len(todo) - at + 1} configurations left; run the same command again to go on")
                break
            print(f"[{at:2}/{len(todo)}] {c.id:56} ", end="", flush=True)
            result = fly(context, c, options, left + GRACE)
            why = result.get("failed") or result.get("refused")
            if why:
                bad += 1
                print(f"no receipt: {why.splitlines()[0][:300]}")
                continue
            receipt = write.row(c, result, options.topology, options.process_group)
            append(options.output, receipt)
            text = write.scenario(c, receipt)
            if text:
                folder.mkdir(exist_ok=True)
                (folder / f"{receipt['id']}.toml").write_text(text)
            written += 1
            print(words(result))
    except KeyboardInterrupt:
        print("\ninterrupted: what was measured is written; run the same command again to go on")
        code = 130
    print(f"{written} receipts written to {options.output}, as scenarios to {folder}/; {bad} failed")
    if topology and written:
        print(f"on the machine with windtunnel: windtunnel check {options.output}")
    return code or int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
