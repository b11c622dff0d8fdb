"""Scenarios in MaxText's layout, written as StableHLO by this program and compiled for slices of TPUs ahead of time: what the compiler's
account of its buffers says, and whether they fit. `xla-edge.json` holds those for v6e, `xla-chips.json` those for other chips.

    python xla_edge.py WINDTUNNEL_CALIBRATE PLUGIN OUT.json LIBTPU [SCENARIO.toml ...]     adds to OUT.json; skips names that are there

The compiler gives its account once buffers have their places, seconds after it began and minutes before it is done. One that needs no
more than there is is final, and the compiler is ended then; one that needs more is waited for, since it may start over. Arguments,
the peak and the total (with gaps between addresses, what is held against the chip's memory) are read as xla_buffers.py reads them.
"""
import glob, json, os, re, signal, subprocess, sys, tempfile, time

# What the compiler gives out on each chip.
CAPACITY = {"tpu-v6e": 33_554_432_000, "tpu-v5p": 102_789_304_811, "tpu-v5e": 16_911_433_728}


def compiled(calibrate, plugin, scenario):
    """Bytes of arguments, at the peak and in total, whether it fits, and whether that was the compiler's last word."""
    capacity = CAPACITY[re.search(r'"(tpu-\w+)"', open(scenario).read())[1]]
    with tempfile.TemporaryDirectory() as folder:
        told = lambda: glob.glob(f"{folder}/**/*.step.*after_optimizations-memory-usage-report.txt", recursive=True)
        total = lambda: int(re.search(r"Total bytes: (\d+)", open(told()[0]).read())[1])
        child = subprocess.Popen([calibrate, "compile-check", "--plugin", plugin, scenario, "--no-cache", "--quiet", "--flag",
                                  f"xla_dump_to={folder}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                 start_new_session=True)
        ended = True
        while child.poll() is None:
            time.sleep(2)
            if told():
                time.sleep(8)
                if child.poll() is None and total() <= capacity:
                    os.killpg(child.pid, signal.SIGTERM)
                    ended = False
                    break
        said = child.communicate()[1]
        if not told():
            raise SystemExit(f"{scenario}: {said}")
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "xla_buffers.py")
        line = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, check=True).stdout
        argument, peak, total = map(int, re.match(r"argument (\d+) peak (\d+) total (\d+)", line).groups())
        fits = total <= capacity
        return dict(argument=argument, peak=peak, total=total, fits=fits, ended=ended)


def main(calibrate, plugin, out, libtpu, scenarios):
    rows = json.load(open(out)) if os.path.exists(out) else []
    for path in scenarios:
        name = os.path.basename(path).removesuffix(".toml")
        if any(row["name"] == name for row in rows):
            continue
        rows.append(dict(name=name, libtpu=libtpu, **compiled(calibrate, plugin, path), scenario=open(path).read()))
        print(name, {key: rows[-1][key] for key in ("peak", "total", "fits")}, flush=True)
        with open(out, "w") as file:
            file.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


main(*sys.argv[1:5], sys.argv[5:])
