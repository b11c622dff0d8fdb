"""Training steps in plain JAX that `xla-plain.json` does not hold, compiled for slices of v6e ahead of time.

    python xla_unseen.py OUT.json DUMPS [NAME ...]     appends to OUT.json; skips what is there

A step is built and compiled in a child; its peak is read from the compiler's account of its buffers (as xla_buffers.py does) as soon
as that is dumped, and the child is ended then.
"""
import sys, os, time, glob, re, signal, json, shutil, math
import xla_plain as xp
import jax, optax
from xla_plain import bf16, f32, toml, llama_model, gpt_model

def make_mesh(topo, shape, names):
    """xla_plain's, which cannot ask for one chip alone."""
    more = dict(chips_per_host_bounds=(1, 1, 1)) if topo == "1x1" else {}
    devices = xp.np.array(xp.topologies.get_topology_desc(platform="tpu", topology_name=f"v6e:{topo}", **more).devices)
    return xp.Mesh(devices.reshape(shape), names)
xp.make_mesh = make_mesh

OUT, DUMPS = sys.argv[1:3]
KNOWN = set(xp.CASES)
CASES = {}
NAMES = {"logp-take": "log_softmax", "lse-take": "logsumexp", "optax-int": "optax-integer", "optax-onehot": "optax-one-hot"}
TARGETS = {"logp-take": "log_softmax", "lse-take": "indexed", "optax-int": "indexed", "optax-onehot": "one_hot"}

def add(name, what, loss, build, scenario):
    assert name not in KNOWN and name not in CASES
    CASES[name] = dict(what=what, loss=NAMES[loss], build=build, scenario=scenario)

def llama(name, what, topo, data=1, fsdp=1, tensor=1, bf16_weights=False, **c):
    chips = math.prod(map(int, topo.split("x")))
    assert data * fsdp * tensor == chips
    o = {**dict(S=2048, remat="full", attention="splash", scan=True, clip=False, loss="optax-int", accumulate=1, accumulate_how="scan"), **c}
    multi = o["accumulate_how"] == "multisteps"
    k = dict(c, loss=o["loss"])
    if data > 1 and tensor == 1: k.update(cut="replicated"); shape = (chips,)
    elif tensor > 1: k.update(cut="2d:fsdp" if fsdp > 1 else "megatron", names=("fsdp", "model") if fsdp > 1 else ("data", "model")); shape = (data * fsdp, tensor)
    else: shape = (chips,)
    words = {}
    if bf16_weights: k["dtype"] = bf16; words.update(mu_dtype="bfloat16", weight_dtype="bfloat16")
    if o.get("square") == "product": words["norm_by_product"] = True
    if multi: words["optax_multi_steps"] = True
    micro = o["batch"] // (data * fsdp) // (1 if multi else o["accumulate"])
    assert micro >= 1
    text = toml(topo, llama_model(**c), dict(data=data, fsdp=fsdp, tensor=tensor), o["S"], micro,
                remat_policy={"full": "full", "none": "none", "dots": "minimal"}[o["remat"]], attention="flash" if o["attention"] == "splash" else "dot_product",
                gradient_clipping=o["clip"], scan_layers=o["scan"], targets=TARGETS[o["loss"]], **words)
    if o["accumulate"] > 1: text = text.replace("[batch]\n", f"[batch]\naccumulation = {o['accumulate']}\n")
    add(name, what, o["loss"], lambda: xp.llama(topo, shape, **k), text)

def gpt(name, what, topo, data=1, fsdp=1, tensor=1, **c):
    chips = math.prod(map(int, topo.split("x")))
    k = dict(c)
    if tensor > 1: k["params"] = "megatron"; shape = (data * fsdp, tensor)
    elif data > 1: k["params"] = "replicated"; shape = (chips,)
    else: shape = (chips,)
    text = toml(topo, gpt_model(**c), dict(data=data, fsdp=fsdp, tensor=tensor), c["T"], c["batch"] // (data * fsdp),
                remat_policy="full" if c.get("remat") else "none", attention="flash" if c.get("attention") == "splash" else "dot_product",
                scan_layers=c.get("scan", False), targets="indexed")
    add(name, what, "optax-int", lambda: xp.gpt2(topo, shape, **k), text)

def linen(name, what, topo, **c):
    n = math.prod(map(int, topo.split("x")))
    model = llama_model(c["L"], c["d"], c["ff"], c["heads"], c["heads"], c["V"]) if c.get("kind", "llama") == "llama" else gpt_model(c["L"], c["d"], c["heads"], c["S"], c["V"])
    add(name, what, "optax-int", lambda: xp.linen(topo, (n,), **c),
        toml(topo, model, dict(data=1, fsdp=n, tensor=1), c["S"], c["batch"] // n, gradient_clipping=c.get("clip", True),
             remat_policy="full" if c.get("remat") else "none", scan_layers=c.get("scan", False), targets="indexed"))

# The first set: none of it was looked at before rules were settled, but how a loss by `log_softmax` lies.
gpt("u-gpt-rep8", "GPT-2 124M, replicated on 8 chips, scan with checkpoint, einsum attention, 16 sequences of 512 a chip", "2x4", data=8, L=12, d=768, heads=12, T=512, batch=128, scan=True, remat=True)
llama("u-llama-rep4-long", "8 blocks of 1,024, replicated on 4 chips, one sequence of 8,192 a chip", "2x2", data=4, L=8, d=1024, ff=4096, h=8, kv=4, S=8192, batch=4)
llama("u-llama-rep8-logp", "12 blocks of 768, replicated on 8 chips, log_softmax, 50,304 words", "2x4", data=8, L=12, d=768, ff=3072, h=6, kv=6, V=50304, S=1024, batch=64, loss="logp-take")
llama("u-tp2-fsdp2-onehot", "8 blocks of 2,048, 2 fsdp x 2 model, dots saved, one-hot", "2x2", fsdp=2, tensor=2, L=8, d=2048, ff=8192, h=16, kv=4, S=4096, batch=4, remat="dots", loss="optax-onehot", constrain=True)
gpt("u-gpt-dp2-tp2", "GPT-2, 2 data x 2 model (Megatron), scan with checkpoint, splash", "2x2", data=2, tensor=2, L=16, d=1536, heads=12, T=1024, batch=16, scan=True, remat=True, attention="splash")
llama("u-llama-fsdp4-dots-onehot", "10 blocks of 2,048, FSDP on 4 chips, dots saved, one-hot", "2x2", fsdp=4, L=10, d=2048, ff=8192, h=16, kv=8, batch=8, remat="dots", loss="optax-onehot", constrain=True)
llama("u-llama-fsdp4-clip-logp", "10 blocks of 3,072, FSDP on 4 chips, clipped, log_softmax", "2x2", fsdp=4, L=10, d=3072, ff=8192, h=24, kv=8, V=32768, S=4096, batch=4, clip=True, loss="logp-take", constrain=True)
llama("u-gemma-fsdp4-onehot", "Gemma-like: 6 blocks of 2,048, heads of 256, 256,000 words, tied, one-hot, FSDP on 4 chips", "2x2", fsdp=4, L=6, d=2048, ff=9216, h=8, kv=4, hd=256, V=256000, batch=8, tied=True, loss="optax-onehot")
llama("u-llama-fsdp4-acc2", "2 micro-batches in a scan, 10 blocks of 2,048, FSDP on 4 chips", "2x2", fsdp=4, L=10, d=2048, ff=5632, h=16, kv=4, V=32768, batch=16, accumulate=2, constrain=True)
llama("u-llama-fsdp4-acc4-logp", "4 micro-batches in MaxText's scan, 6 blocks of 2,560, log_softmax, FSDP on 4 chips", "2x2", fsdp=4, L=6, d=2560, ff=6912, h=20, kv=4, V=32000, S=2048, batch=32, accumulate=4, accumulate_how="maxtext", loss="logp-take", constrain=True)
llama("u-llama-fsdp4-bf16", "16 blocks of 3,072, weights and moments in bf16, FSDP on 4 chips", "2x2", fsdp=4, bf16_weights=True, L=16, d=3072, ff=8192, h=24, kv=8, V=32768, batch=8, constrain=True)
gpt("u-gpt-medium-fsdp4", "GPT-2 medium, scan with checkpoint, einsum attention, FSDP on 4 chips", "2x2", fsdp=4, L=24, d=1024, heads=16, T=1024, batch=16, scan=True, remat=True)
llama("u-llama-tp2-fsdp4", "12 blocks of 3,072, 4 fsdp x 2 model", "2x4", fsdp=4, tensor=2, L=12, d=3072, ff=8192, h=24, kv=8, V=32768, batch=16, constrain=True)
llama("u-llama-1-full", "8 blocks of 1,536 on one chip, full remat, 8 sequences of 1,024", "1x1", L=8, d=1536, ff=4096, h=12, kv=4, S=1024, batch=8)
llama("u-gemma-1", "Gemma-like on one chip: 4 blocks of 2,048, heads of 256, 256,000 words, tied", "1x1", L=4, d=2048, ff=8192, h=8, kv=1, hd=256, V=256000, S=1024, batch=2, tied=True)
llama("u-llama-1-loop-onehot", "6 blocks of 1,024 on one chip, written out, no remat, one-hot", "1x1", L=6, d=1024, ff=2816, h=8, kv=8, S=2048, batch=4, remat="none", scan=False, loss="optax-onehot")
gpt("u-gpt-1-loop", "GPT-2 124M on one chip, written out, no remat, einsum attention", "1x1", L=12, d=768, heads=12, T=1024, batch=8)
llama("u-llama-fsdp8-full", "16 blocks of 2,560, FSDP on 8 chips, full remat", "2x4", fsdp=8, L=16, d=2560, ff=6912, h=20, kv=4, V=50304, S=4096, batch=16, constrain=True)
llama("u-llama-fsdp8-none-onehot", "8 blocks of 2,048, FSDP on 8 chips, no remat, one-hot", "2x4", fsdp=8, L=8, d=2048, ff=5632, h=16, kv=16, S=1024, batch=32, remat="none", loss="optax-onehot", square="product", constrain=True)
llama("u-llama-fsdp8-logp", "20 blocks of 1,536, 65,536 words, log_softmax, FSDP on 8 chips", "2x4", fsdp=8, L=20, d=1536, ff=6144, h=12, kv=12, V=65536, batch=32, loss="logp-take", constrain=True)
gpt("u-gpt-fsdp8-splash", "GPT-2, 24 blocks of 1,536, scan with checkpoint, splash, FSDP on 8 chips", "2x4", fsdp=8, L=24, d=1536, heads=12, T=2048, batch=32, scan=True, remat=True, attention="splash")
linen("u-linen-llama-fsdp8", "flax.linen Llama, 12 blocks of 1,536, nn.scan and nn.remat, clipped, FSDP on 8 chips", "2x4", L=12, d=1536, ff=4096, heads=12, V=32000, S=4096, batch=16, remat=True, scan=True)
llama("u-llama-fsdp8-multi2-onehot", "optax.MultiSteps of 2, 12 blocks of 2,048, one-hot, FSDP on 8 chips", "2x4", fsdp=8, L=12, d=2048, ff=8192, h=16, kv=8, V=32768, batch=16, accumulate=2, accumulate_how="multisteps", loss="optax-onehot", constrain=True)
llama("u-gemma-fsdp8-logp", "Gemma-like: 8 blocks of 3,072, heads of 256, 262,144 words, tied, log_softmax, FSDP on 8 chips", "2x4", fsdp=8, L=8, d=3072, ff=12288, h=12, kv=4, hd=256, V=262144, S=1024, batch=16, tied=True, loss="logp-take", constrain=True)
llama("u-llama-fsdp16-8b", "24 blocks of Llama 8B's shape, 128,256 words, FSDP on 16 chips", "4x4", fsdp=16, L=24, d=4096, ff=14336, h=32, kv=8, V=128256, S=4096, batch=32, constrain=True)
llama("u-llama-fsdp16-logp", "16 blocks of 2,048, one sequence of 8,192 a chip, 50,304 words, log_softmax, FSDP on 16 chips", "4x4", fsdp=16, L=16, d=2048, ff=8192, h=16, kv=8, V=50304, S=8192, batch=16, loss="logp-take")
llama("u-llama-fsdp8-tp2-logp", "16 blocks of 4,096, 8 fsdp x 2 model, log_softmax", "4x4", fsdp=8, tensor=2, L=16, d=4096, ff=11008, h=32, kv=8, V=32000, S=4096, batch=32, loss="logp-take", constrain=True)
llama("u-mixtral-fsdp4", "3 blocks of 1,536 with 8 sorted experts (gmm), one sequence of 4,096 a chip, FSDP on 4 chips", "2x2", fsdp=4, L=3, d=1536, ff=4096, h=12, kv=4, experts=8, V=32000, S=4096, batch=4, unsort="permute", constrain=True)
llama("u-mixtral-fsdp8", "4 blocks of 2,048 with 8 sorted experts (gmm), 2 sequences of 2,048 a chip, FSDP on 8 chips", "2x4", fsdp=8, L=4, d=2048, ff=5120, h=16, kv=4, experts=8, V=32768, S=2048, batch=16, constrain=True)
llama("u-llama-fsdp4-loop", "6 blocks of 2,560 written out, full remat, FSDP on 4 chips", "2x2", fsdp=4, L=6, d=2560, ff=6912, h=20, kv=4, V=32768, S=4096, batch=4, scan=False)
llama("u-llama-fsdp8-loop", "8 blocks of 4,096 written out, full remat, FSDP on 8 chips", "2x4", fsdp=8, L=8, d=4096, ff=11008, h=32, kv=32, S=2048, batch=16, scan=False, constrain=True)
linen("u-linen-gpt-fsdp4-loop", "flax.linen GPT, 12 blocks of 1,280, written out, no remat, FSDP on 4 chips", "2x2", L=12, d=1280, ff=5120, heads=10, V=50304, S=1024, batch=16, kind="gpt", clip=False)
# Larger.
llama("u-llama-fsdp4-20-blocks", "20 blocks of 4,096, FSDP on 4 chips, full remat", "2x2", fsdp=4, L=20, d=4096, ff=11008, h=32, kv=8, S=2048, batch=16, constrain=True)
llama("u-llama-rep4-1b-onehot", "16 blocks of 2,048, replicated on 4 chips, one-hot", "2x2", data=4, L=16, d=2048, ff=5632, h=16, kv=8, S=2048, batch=8, loss="optax-onehot")
llama("u-llama-fsdp8-none", "16 blocks of 3,072, FSDP on 8 chips, no remat", "2x4", fsdp=8, L=16, d=3072, ff=8192, h=24, kv=24, V=32768, S=2048, batch=24, remat="none", square="product", constrain=True)
llama("u-llama-1-logp", "8 blocks of 1,024 on one chip, 4 sequences of 2,048, log_softmax", "1x1", L=8, d=1024, ff=4096, h=8, kv=4, V=50304, S=2048, batch=4, loss="logp-take")
llama("u-llama-fsdp16-8b-logp", "12 blocks of Llama 8B's shape, 8 sequences of 2,048 a chip, 128,256 words, log_softmax, FSDP on 16 chips", "4x4", fsdp=16, L=12, d=4096, ff=14336, h=32, kv=8, V=128256, S=2048, batch=128, loss="logp-take", constrain=True)

# The second set, after blocks that are written out.
llama("v-loop8-a", "6 blocks of 2,048 written out, full remat, FSDP on 8 chips", "2x4", fsdp=8, L=6, d=2048, ff=5632, h=16, kv=16, S=4096, batch=16, scan=False, constrain=True)
llama("v-loop8-b", "4 blocks of 3,072 written out, full remat, one-hot, FSDP on 8 chips", "2x4", fsdp=8, L=4, d=3072, ff=12288, h=24, kv=8, S=2048, batch=32, scan=False, constrain=True, loss="optax-onehot")
llama("v-loop8-none", "6 blocks of 2,048 written out, no remat, FSDP on 8 chips", "2x4", fsdp=8, L=6, d=2048, ff=5632, h=16, kv=16, S=2048, batch=16, scan=False, remat="none", constrain=True)
llama("v-rep8-onehot", "10 blocks of 1,024, replicated on 8 chips, one-hot, two sequences of 4,096 a chip", "2x4", data=8, L=10, d=1024, ff=2816, h=8, kv=8, S=4096, batch=16, loss="optax-onehot")
llama("v-fsdp8-8b", "10 blocks of Llama 8B's shape, 128,256 words, FSDP on 8 chips", "2x4", fsdp=8, L=10, d=4096, ff=14336, h=32, kv=8, V=128256, S=2048, batch=16, constrain=True)
llama("v-fsdp8-logp-a", "14 blocks of 3,072, 100,352 words, log_softmax, FSDP on 8 chips", "2x4", fsdp=8, L=14, d=3072, ff=8192, h=24, kv=8, V=100352, S=2048, batch=24, loss="logp-take", constrain=True)
llama("v-fsdp4-logp", "8 blocks of 2,048, 64,000 words, log_softmax, FSDP on 4 chips", "2x2", fsdp=4, L=8, d=2048, ff=7168, h=16, kv=4, V=64000, S=2048, batch=24, loss="logp-take", constrain=True)
llama("v-fsdp16-full", "20 blocks of 3,072, 32,768 words, FSDP on 16 chips, one sequence of 8,192 a chip", "4x4", fsdp=16, L=20, d=3072, ff=8192, h=24, kv=8, V=32768, S=8192, batch=16, constrain=True)
llama("v-fsdp4-tp4", "10 blocks of 4,096, 4 fsdp x 4 model", "4x4", fsdp=4, tensor=4, L=10, d=4096, ff=14336, h=32, kv=8, V=32768, S=4096, batch=16, constrain=True)
llama("v-dp4-tp4", "8 blocks of 2,048, 4 replicas x 4 model, one-hot", "4x4", data=4, tensor=4, L=8, d=2048, ff=8192, h=16, kv=8, V=32768, S=2048, batch=16, loss="optax-onehot", constrain=True)
gpt("v-gpt-large-fsdp8", "GPT-2 large, scan with checkpoint, splash, FSDP on 8 chips", "2x4", fsdp=8, L=36, d=1280, heads=20, T=1024, batch=64, scan=True, remat=True, attention="splash")
gpt("v-gpt-fsdp4-none", "GPT-2 124M, scan, no remat, splash, FSDP on 4 chips", "2x2", fsdp=4, L=12, d=768, heads=12, T=1024, batch=32, scan=True, attention="splash")
linen("v-linen-llama-fsdp4", "flax.linen Llama, 10 blocks of 2,048, nn.scan and nn.remat, clipped, FSDP on 4 chips", "2x2", L=10, d=2048, ff=5632, heads=16, V=50304, S=2048, batch=16, remat=True, scan=True)
llama("v-fsdp8-clip", "12 blocks of 2,560, clipped, FSDP on 8 chips", "2x4", fsdp=8, L=12, d=2560, ff=6912, h=20, kv=20, V=32000, S=2048, batch=32, clip=True, constrain=True)
llama("v-fsdp8-acc4", "4 micro-batches in a scan, 12 blocks of 2,048, FSDP on 8 chips", "2x4", fsdp=8, L=12, d=2048, ff=5632, h=16, kv=4, V=32000, batch=64, accumulate=4, constrain=True)
llama("v-fsdp8-bf16", "24 blocks of 3,072, weights and moments in bf16, FSDP on 8 chips", "2x4", fsdp=8, bf16_weights=True, L=24, d=3072, ff=8192, h=24, kv=8, V=32768, batch=16, constrain=True)
llama("v-gemma-fsdp8", "Gemma-like: 6 blocks of 2,048, heads of 256, 256,000 words, tied, FSDP on 8 chips", "2x4", fsdp=8, L=6, d=2048, ff=9216, h=8, kv=4, hd=256, V=256000, batch=16, tied=True, constrain=True)
llama("v-mixtral-fsdp8", "3 blocks of 2,048 with 8 sorted experts (gmm), one sequence of 4,096 a chip, FSDP on 8 chips", "2x4", fsdp=8, L=3, d=2048, ff=5632, h=16, kv=8, experts=8, V=32000, S=4096, batch=8, unsort="permute", constrain=True)
llama("v-1-onehot", "12 blocks of 1,536 on one chip, full remat, one-hot, 4 sequences of 2,048", "1x1", L=12, d=1536, ff=4096, h=12, kv=12, S=2048, batch=4, loss="optax-onehot")
llama("v-1-logp-one", "6 blocks of 1,024 on one chip, one sequence of 8,192, log_softmax", "1x1", L=6, d=1024, ff=2816, h=8, kv=8, V=32000, S=8192, batch=1, loss="logp-take")
llama("v-fsdp8-ada", "24 blocks of 2,048, optax.adafactor, FSDP on 8 chips", "2x4", fsdp=8, L=24, d=2048, ff=5632, h=16, kv=8, V=32000, batch=32, optimizer=optax.adafactor(1e-3), state_dtype="rule", constrain=True)
llama("v-fsdp4-ada", "10 blocks of 3,072, optax.adafactor, FSDP on 4 chips", "2x2", fsdp=4, L=10, d=3072, ff=8192, h=24, kv=8, V=32768, batch=8, optimizer=optax.adafactor(1e-3), state_dtype="rule", constrain=True)
llama("v-rep4-ada", "12 blocks of 1,536, optax.adafactor, replicated on 4 chips", "2x2", data=4, L=12, d=1536, ff=4096, h=12, kv=12, V=32000, batch=8, optimizer=optax.adafactor(1e-3), constrain=True)
for n in ("v-fsdp8-ada", "v-fsdp4-ada", "v-rep4-ada"): CASES[n]["scenario"] = CASES[n]["scenario"].replace("[batch]\n", '[optimizer]\nname = "adafactor"\n[batch]\n')

def account(folder):
    stem = glob.glob(f"{folder}/**/*after_optimizations-live-range.txt", recursive=True)[0].removesuffix("-live-range.txt")
    lives, values, section = {}, {}, None
    for line in open(stem + "-live-range.txt"):
        if "InstructionSequence" in line or "BufferLiveRange" in line or "Live ranges at" in line: section = line.split()[0]
        elif section == "BufferLiveRange:" and (m := re.match(r"\s+(.*):(\d+)-(\d+)", line)): lives[m[1]] = int(m[2]), int(m[3])
    arguments, argument, allocation = 0, False, 0
    for line in open(stem + "-buffer-assignment.txt"):
        if m := re.match(r"allocation \d+: size (\d+),(.*)", line):
            argument, allocation = "parameter" in m[2], allocation + 1
            arguments += int(m[1]) if argument and not m[2].startswith(" color ") else 0
        elif (m := re.match(r" value: <\d+ (.*?)(?: \(phi\))? @0> \(size=(\d+),offset=(\d+)\): ([^{]*)", line)) and not argument:
            values[m[1] if "{" in m[1] else m[1] + "{}"] = int(m[2]), (allocation, int(m[3]))
    def live(time):
        total, end = 0, (0, 0)
        for (al, first), size in sorted((values[n][1], values[n][0]) for n, (a, b) in lives.items() if a <= time <= b and n in values):
            free = max(first, end[1]) if end[0] == al else first
            total += max(0, first + size - free)
            end = al, max(free, first + size)
        return total
    return arguments, max(live(t) for t in {a for a, _ in lives.values()}) + arguments

def compile_one(name, limit=240):
    folder = f"{DUMPS}/{name}"
    shutil.rmtree(folder, ignore_errors=True); os.makedirs(folder)
    began, pid = time.time(), os.fork()
    if pid == 0:
        os.nice(10)
        fd = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT, 0o644); os.dup2(fd, 1); os.dup2(fd, 2)
        try:
            CASES[name]["build"]().compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        except BaseException as why:
            open(f"{folder}/error", "w").write(repr(why)[:3000])
        os._exit(0)
    while True:
        time.sleep(0.5)
        if os.waitpid(pid, os.WNOHANG)[0]: break
        over = time.time() - began > limit
        if over or glob.glob(f"{folder}/**/*memory-usage-report.txt", recursive=True):
            time.sleep(1.5); os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
            if over: return None, "too long"
            break
    error = open(f"{folder}/error").read() if os.path.exists(f"{folder}/error") else ""
    try: return account(folder), error
    except IndexError: return None, error

if __name__ == "__main__":
    rows = json.load(open(OUT)) if os.path.exists(OUT) else []
    for name in sys.argv[3:] or CASES:
        if any(r["name"] == name for r in rows): continue
        began = time.time()
        got, error = compile_one(name)
        print(f"{name} {time.time() - began:.0f}s", [f"{x / 1e9:.3f}" for x in got] if got else None, error[:300], flush=True)
        if not got: continue
        c = CASES[name]
        rows.append(dict(name=name, what=c["what"], loss=c["loss"], jax=jax.__version__, libtpu="0.0.42.1", argument=got[0], peak=got[1], scenario=c["scenario"]))
        json.dump(rows, open(OUT + ".new", "w"), indent=1); os.replace(OUT + ".new", OUT)
        for f in glob.glob(f"{DUMPS}/{name}/*before_*") + glob.glob(f"{DUMPS}/{name}/*values.txt"): os.remove(f)
