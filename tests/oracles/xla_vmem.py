"""What VMEM the splash attention kernel takes, as XLA's TPU compiler says when it refuses a kernel for want of it.

The limit is set so low that a kernel is refused, and then to what it said it needs, until it compiles: the last figure is what it
takes. Backward is compiled apart from forward, as a function of what forward keeps. One chip of a described slice; nothing runs.

    python xla_vmem.py [OUT]
"""
import json, os, re, sys
os.environ.update(TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1", TPU_WORKER_HOSTNAMES="localhost", TPU_WORKER_ID="0",
                  TPU_ACCELERATOR_TYPE="v6e-4", JAX_PLATFORMS="cpu")
import jax, jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as sk, splash_attention_mask as sm
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

SIZE = re.compile(r"for %([a-z_0-9]+).*Scoped allocation with size ([0-9.]+)([KM]) and limit", re.S)
chip = NamedSharding(Mesh(np.array(topologies.get_topology_desc(platform="tpu", topology_name="v6e:2x2").devices)[:1], ("d",)), P())

def lowered(bq, bkv, compute, head_dim, segments, fused, backward, seq=8192, heads=4):
    sizes = sk.BlockSizes(block_q=bq, block_kv=bkv, block_kv_compute=compute, block_q_dkv=bq, block_kv_dkv=bkv,
                          block_kv_dkv_compute=compute, block_q_dq=None if fused else bq, block_kv_dq=None if fused else bkv,
                          use_fused_bwd_kernel=fused)
    kernel = sk.make_splash_mha(mask=sm.MultiHeadMask([sm.CausalMask((seq, seq))] * heads), head_shards=1, q_seq_shards=1, block_sizes=sizes)
    array = lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=chip)
    x, ids = array((2, heads, seq, head_dim), jnp.bfloat16), array((2, seq), jnp.int32)
    one = (lambda q, k, v, s: kernel(q, k, v, sk.SegmentIds(q=s, kv=s))) if segments else (lambda q, k, v, s: kernel(q, k, v))
    attend = lambda q, k, v, s: jax.vmap(one)(q, k, v, s)
    if not backward:
        return jax.jit(attend).lower(x, x, x, ids)
    kept = jax.eval_shape(lambda q, k, v, s: jax.vjp(lambda q, k, v: attend(q, k, v, s), q, k, v)[1], x, x, x, ids)
    kept = jax.tree.map(lambda t: array(t.shape, t.dtype), kept)
    return jax.jit(lambda back, g: back(g)).lower(kept, x)

def taken(program):
    """The last figure of each kernel, by its name."""
    limit, found = 256, {}
    while True:
        try:
            program.compile(compiler_options={"xla_tpu_scoped_vmem_limit_kib": str(limit)})
            return found
        except Exception as refused:
            said = SIZE.search(str(refused))
            if not said:
                return found
            name, number, unit = said.groups()
            found[name] = float(number) / (1 if unit == "M" else 1024)
            limit = int(found[name] * 1024) + 16

out = open(sys.argv[1], "w") if len(sys.argv) > 1 else sys.stdout
for blocks in [(512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (1024, 2048, 1024), (2048, 1024, 1024)]:
    for segments in (False, True):
        for backward, fused in ((False, False), (True, False), (True, True)):
            for name, mib in taken(lowered(*blocks, 128, segments, fused, backward)).items():
                kind = "forward" if "fwd" in name else "dq" if "_dq_" in name else "fused" if fused else "backward"
                row = dict(chip="tpu-v6e", kernel=kind, block_q=blocks[0], block_kv=blocks[1], block_kv_compute=blocks[2],
                           head_dim=128, segments=segments, mib=mib)
                print(json.dumps(row), file=out, flush=True)
