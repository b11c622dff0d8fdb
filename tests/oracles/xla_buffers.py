"""The most that a step compiled for a TPU holds at once, and what, from the compiler's own account of its buffers.

    python xla_buffers.py DIR [TIME]

DIR is where the compiler wrote its account: `windtunnel calibrate xla compile STEP.mlir --topology v6e:4x4 --plugin tpu@0.0.42.1
--flag xla_dump_to=DIR`. It is there seconds after the compiler began, minutes before it is done, and for steps that are refused,
too; then it may be interrupted. Printed are bytes of arguments, the most that is live at once (`peak` of `xla_steps.json`: what
the runtime's memory statistics call peak), what that needs with gaps between addresses (`total`: what is held against the chip's
memory), and buffers of a megabyte and more that live at that instruction, or at TIME.
"""
import glob, re, sys

folder = sys.argv[1]
stem = glob.glob(f"{folder}/**/*.step.*after_optimizations-live-range.txt", recursive=True)[0].removesuffix("-live-range.txt")
order, lives, section = {}, {}, None
for line in open(stem + "-live-range.txt"):
    if "InstructionSequence" in line or "BufferLiveRange" in line or "Live ranges at" in line:
        section = line.split()[0]
    elif section == "InstructionSequence:" and (found := re.match(r"\s+(\d+):(.*)", line)):
        order[int(found[1])] = found[2].strip()
    elif section == "BufferLiveRange:" and (found := re.match(r"\s+(.*):(\d+)-(\d+)", line)):
        lives[found[1]] = int(found[2]), int(found[3])

# Name to bytes, place and shape, of what lies in HBM (@0) and is no argument.
values, arguments, argument, allocation = {}, 0, False, 0
for line in open(stem + "-buffer-assignment.txt"):
    if found := re.match(r"allocation \d+: size (\d+),(.*)", line):
        argument, allocation = "parameter" in found[2], allocation + 1
        arguments += int(found[1]) if argument and not found[2].startswith(" color ") else 0
    elif found := re.match(r" value: <\d+ (.*?)(?: \(phi\))? @0> \(size=(\d+),offset=(\d+)\): ([^{]*)", line):
        if not argument:
            name = found[1] if "{" in found[1] else found[1] + "{}"
            values[name] = int(found[2]), (allocation, int(found[3])), found[4]


def live(time):
    """Bytes of all addresses in use: values that share one count once."""
    places = sorted((values[name][1], values[name][0]) for name, (first, last) in lives.items()
                    if first <= time <= last and name in values)
    total, end = 0, (0, 0)
    for (allocation, first), size in places:
        free = max(first, end[1]) if end[0] == allocation else first
        total += max(0, first + size - free)
        end = allocation, max(free, first + size)
    return total


peak = max(sorted({first for first, _ in lives.values()}), key=live)
total = re.search(r"Total bytes: (\d+)", open(stem + "-memory-usage-report.txt").read())[1]
print(f"argument {arguments} peak {live(peak) + arguments} total {total} at {peak} {order[peak]}")
time = int(sys.argv[2]) if len(sys.argv) > 2 else peak
for size, name in sorted(((values[name][0], name) for name, (first, last) in lives.items()
                          if first <= time <= last and name in values), reverse=True):
    if size >= 1 << 20:
        first, last = lives[name]
        print(f"{size / 1e6:10.1f} MB {name} {values[name][2]} from {first} {order[first]} to {last} {order[last]}")
