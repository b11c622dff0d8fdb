"""Trains Llamas of a few blocks on one GPU and writes receipts that `windtunnel check` holds predictions against.

    python make.py receipts.jsonl --minutes 10

needs nothing but PyTorch (2.6 or newer). The most valuable configurations come first, each is written as soon as it is
measured, and the same command goes on where the last one stopped. Exit code: 0 done or out of time, 1 a configuration
failed or was refused, 2 bad input, no PyTorch, no GPU or a busy one, 130 interrupted.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

try:
    import torch  # noqa: F401  all modules below need it; without it they would end in a traceback
except (ImportError, OSError) as error:
    print(
        f"error: PyTorch cannot be imported by {sys.executable} ({error}): install version 2.6 or newer built for CUDA "
        "(pip install torch), or start this script with the Python that has it",
        file=sys.stderr,
    )
    sys.exit(2)

import write
from configurations import CONFIGURATIONS
from measure import SOAK, SUSTAINED, child

GRACE = 120.0  # seconds that a configuration may take beyond what it was expected to
BUSY = 2 * 2**30  # bytes that contexts alone do not hold on an otherwise idle device


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, nargs="?", default=Path("receipts.jsonl"), help="file of receipts (JSON lines)")
    parser.add_argument("--minutes", type=float, default=30.0, help="time budget; default 30")
    parser.add_argument("--only", metavar="WORDS", help="configurations whose id has one of these words (a,b,…)")
    parser.add_argument("--clocks", choices=["burst", "sustained"], help="only this regime")
    parser.add_argument(
        "--sustained-seconds", type=float, default=SOAK + SUSTAINED,
        help=f"training before and while sustained steps are timed; default {SOAK + SUSTAINED:g}",
    )
    parser.add_argument("--topology", help="the board's topology, where its name is not known (see the README)")
    parser.add_argument("--process-group", choices=["nccl", "gloo", "fake"], default="nccl", help="of FSDP2's one rank")
    parser.add_argument("--memory-only", action="store_true", help="leave time and kernels out: rows say so, and are no measured runs")
    parser.add_argument("--list", action="store_true", help="print the configurations and stop")
    return parser.parse_args()


def refuse(why):
    print(f"error: {why}", file=sys.stderr)
    sys.exit(2)


def known(path):
    """Ids of the file, made if there is none; a last line that was cut off is taken away, so that all rows are whole."""
    try:
        path.touch()
        data = path.read_bytes()
    except OSError as error:
        refuse(f"cannot write {path}: {error.strerror}")
    whole = data[: data.rfind(b"\n") + 1]
    ids = set()
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            ids.add(json.loads(line)["id"])
        except (ValueError, KeyError, TypeError):
            refuse(f"{path}:{number}: this line is no receipt: mend it, or write to another file")
    if whole != data:
        print(f"{path}: the last line was cut off and is taken away; its configuration runs again")
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return ids


def append(path, receipt):
    """One line more, on the disk before this returns."""
    with path.open("a") as file:
        file.write(json.dumps(receipt) + "\n")
        file.flush()
        os.fsync(file.fileno())


class Line:
    """The line of the configuration that runs: on a terminal it says what it is doing."""

    def __init__(self, head):
        self.head, self.live = head, sys.stdout.isatty()
        print(head, end="", flush=True)

    def phase(self, words):
        if self.live:
            print(f"\r{self.head} {words}\033[K", end="", flush=True)

    def end(self, words):
        print(f"\r{self.head} {words}\033[K" if self.live else f" {words}")


def fly(context, limit, phase, *args):
    """One configuration in a process of its own: what it answered."""
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(there, *args), daemon=True)
    process.start()
    there.close()
    end, so_far = time.monotonic() + limit, None
    try:
        while here.poll(max(0.0, end - time.monotonic())):
            answer = here.recv()
            if "phase" not in answer:
                return answer
            phase(answer["phase"])
            so_far = answer.get("so_far")
        return so_far or {"failed": f"not done after {limit:.0f} s"}
    except EOFError:
        process.join()
        return so_far or {"failed": f"the process died (exit code {process.exitcode})"}
    finally:
        here.close()
        process.join(2)
        if process.is_alive():
            process.kill()
            process.join()


def words(result):
    """One line about a result."""
    if "oom" in result:
        return "out of memory (a receipt too)"
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
    return [c for c in CONFIGURATIONS if any(part in c.id for part in parts) and options.clocks in (None, c.clocks)]


def ask(pipe):
    """What the device is; in a process of its own, so that this one holds no context."""
    try:
        import torch

        free, total = torch.cuda.mem_get_info()
        pipe.send({"name": torch.cuda.get_device_name(), "used": total - free, "torch": torch.__version__})
    except Exception as error:
        pipe.send({"error": str(error).splitlines()[0]})


def device(context):
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=ask, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        answer = here.recv()
    except EOFError:
        answer = {"error": "the process that looked for a GPU died"}
    process.join()
    here.close()
    if "error" in answer:
        refuse(f"{answer['error']}: receipts are measured on a CUDA GPU, with a PyTorch built for it")
    if answer["used"] > BUSY:
        used = answer["used"] / write.GIB
        refuse(f"others hold {used:.1f} GiB of the GPU: end them, or choose another GPU with CUDA_VISIBLE_DEVICES")
    return answer


def session(context, options, todo, board, done):
    """Flies what there is time for; how many receipts were written, how many failed, how many are left."""
    family = write.hardware(board["name"], options.topology)[2]
    log = options.output.with_suffix(".log")
    start, written, bad, left_over = time.monotonic(), 0, 0, 0
    for at, c in enumerate(todo, 1):
        if write.identity(c, family, options.memory_only) in done:
            continue
        elapsed = time.monotonic() - start
        expected = c.seconds(options.sustained_seconds)
        if elapsed + expected > options.minutes * 60:
            left_over += 1
            continue
        line = Line(f"[{at:2}/{len(todo)} {int(elapsed) // 60:2}:{int(elapsed) % 60:02}] {c.id:56}")
        settings = (options.process_group, options.memory_only, options.sustained_seconds)
        result = fly(context, expected + GRACE, line.phase, log, c, *settings)
        why = result.get("failed") or result.get("refused")
        if why:
            bad += 1
            line.end(f"no receipt: {why.splitlines()[0][:300]} (more in {log})")
            continue
        append(options.output, write.row(c, result, options))
        written += 1
        line.end(words(result))
    return written, bad, left_over


def stop(*_):
    raise KeyboardInterrupt


def main():
    options = arguments()
    todo = chosen(options)
    if not todo:
        refuse("no configuration has those words in its id: --list prints them")
    if options.list:
        print("\n".join(f"{c.id:56} about {c.seconds(options.sustained_seconds):.0f} s" for c in todo))
        return 0
    done = known(options.output)
    signal.signal(signal.SIGTERM, stop)
    # A process per configuration, each from a server that has imported PyTorch and never touched the device. Before
    # Python 3.13 the server does not look for modules where this script lies, unless the environment says so.
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["measure", "train", "breakdown"])
    board = device(context)
    print(f"{board['name']}, PyTorch {board['torch']}: {len(todo)} configurations, {options.minutes:g} minutes")
    if write.hardware(board["name"], options.topology)[1] is None:
        print("warning: no topology is known for this board: name one with --topology, or nothing can be predicted for it")
    try:
        written, bad, left = session(context, options, todo, board, done)
    except KeyboardInterrupt:
        print("\ninterrupted: what was measured is written; the same command goes on")
        return 130
    print(f"{written} receipts written to {options.output}, {bad} failed, {left} left for another time")
    print(f"where windtunnel is: windtunnel check {options.output}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
