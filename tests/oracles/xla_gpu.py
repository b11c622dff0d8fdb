"""What XLA:GPU makes of a training step: bytes and instructions, with no GPU.

A decoder as MaxText writes it (RMSNorm, rotary, gated MLP), in one scan or written out, under a remat policy, parameters and AdamW's
state in fp32 and sharded over `fsdp`, computed in bf16, the embedding by a matmul with one-hot rows, gradients clipped. Attention is
cuDNN's through JAX; with `te` its result and the sums of its softmax are named `context`, as Transformer Engine names them. The CUDA
plugin compiles it ahead of time for a topology of H100s that is described by numbers (openxla/xla@0774019d9,
`xla/backends/gpu/target_config/specs/h100_sxm.txtpb`).

    pip install "jax[cuda12]==0.7.2"
    XLA_FLAGS="--xla_disable_hlo_passes=rematerialization --xla_gpu_enable_command_buffer=" \
        python xla_gpu.py DIR NAME [L=4] [scan=0] [remat=full] [D=2] [FLAG=VALUE ...] xla_gpu_enable_triton_gemm=false

prints bytes of arguments and temporaries, and writes the compiled module and its buffers under DIR/NAME.
"""
import os,sys
os.environ["XLA_FLAGS"]=os.environ.get("XLA_FLAGS","")+" --xla_dump_to="+sys.argv[1]+"/"+sys.argv[2]+" --xla_dump_hlo_as_text"
import os, sys, json, re, time
os.environ["JAX_PLATFORMS"]="cpu"; os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"]="1"
case = sys.argv[2]; opts = dict(kv.split("=",1) for kv in sys.argv[3:])
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, Mesh, PartitionSpec as P
C = dict(d=4096, ff=11008, h=32, hd=128, V=32000, L=4, B=2, S=4096, n=8, D=1, te=1, remat="mwc", scan=1, attn="cudnn", iota=1)
for k in list(opts):
    if k in C: v = opts.pop(k); C[k] = int(v) if v.isdigit() else v
H100 = dict(threads_per_block_limit=1024, threads_per_warp=32, shared_memory_per_block=49152, shared_memory_per_core=233472,
 threads_per_core_limit=2048, core_count=132, fpus_per_core=128, block_dim_limit_x=2147483647, block_dim_limit_y=65535,
 block_dim_limit_z=65535, memory_bandwidth=3352320000000, l2_cache_size=52428800, clock_rate_ghz=1.98,
 device_memory_size=84942979072, shared_memory_per_block_optin=232448)
target = "gpu_device_info {\n" + "".join(f"  {k}: {v}\n" for k, v in H100.items())
target += "  cuda_compute_capability {\n    major: 9\n  }\n  registers_per_core_limit: 65536\n  registers_per_block_limit: 65536\n}\n"
target += 'platform_name: "CUDA"\ndnn_version_info {\n  major: 9\n  minor: 10\n  patch: 0\n}\ndevice_description_str: "NVIDIA H100 80GB HBM3"\n'
if C["te"]:
    import jax._src.cudnn.fused_attention_stablehlo as fa
    class Named:
        def __init__(self, p): self.p = p
        def bind(self, *a, **k):
            o = self.p.bind(*a, **k)
            return [checkpoint_name(o[0], "context"), checkpoint_name(o[1], "context"), *o[2:]] if k["is_training"] else o
    fa._dot_product_attention_fwd_p_wrapper = Named(fa._dot_product_attention_fwd_p_wrapper)
topo = topologies.get_topology_desc(platform="cuda", topology_name="h100", topology=f"1x{C['D']}x{C['n']}", target_config=target)
mesh = Mesh(np.array(topo.devices).reshape(C["D"],C["n"]), ("data","fsdp"))
d,ff,h,hd,V,L,B,S,n = (C[k] for k in "d ff h hd V L B S n".split())
con = lambda x,*s: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*s)))
sh = dict(q=((d,h*hd),0),k=((d,h*hd),0),v=((d,h*hd),0),o=((h*hd,d),1),w0=((d,ff),0),w1=((d,ff),0),w2=((ff,d),1),n1=((d,),None),n2=((d,),None))
def spec(ax, lead): 
    s=[None]*(2 if ax is not None else 1)
    if ax is not None: s[ax]="fsdp"
    return P(*(([None]*lead)+s))
def norm(x,w):
    y=x.astype(jnp.float32); y=y*jax.lax.rsqrt(jnp.mean(y*y,-1,keepdims=True)+1e-5)
    return y.astype(jnp.bfloat16)*w.astype(jnp.bfloat16)
def rope(x):
    half=x.shape[-1]//2; pos=jnp.arange(x.shape[1],dtype=jnp.float32); f=1/(1e4**(jnp.arange(half,dtype=jnp.float32)/half)); a=pos[:,None]*f
    s,c=jnp.sin(a)[None,:,None],jnp.cos(a)[None,:,None]; u,w=jnp.split(x.astype(jnp.float32),2,-1)
    return jnp.concatenate([u*c-w*s,w*c+u*s],-1).astype(jnp.bfloat16)
def attend(q,k,v):
    if C["attn"]=="cudnn": 
        return jax.nn.dot_product_attention(q,k,v,is_causal=True,implementation="cudnn")
    s=jnp.einsum("bshd,bthd->bhst",q,k,preferred_element_type=jnp.float32)/np.sqrt(hd)
    s=jnp.where(jnp.tril(jnp.ones((S,S),bool)),s,-1e30); p=jax.nn.softmax(s,-1).astype(jnp.bfloat16)
    return jnp.einsum("bhst,bthd->bshd",p,v)
def block(x,p):
    x=con(x,("data","fsdp"),None,None); x=checkpoint_name(x,"decoder_layer_input")
    c=lambda n:p[n].astype(jnp.bfloat16)
    y=norm(x,p["n1"])
    q,k,v=(checkpoint_name((y@c(m)),nm) for m,nm in (("q","query_proj"),("k","key_proj"),("v","value_proj")))
    q,k,v=(t.reshape(*t.shape[:2],h,hd) for t in (q,k,v))
    a=(attend(rope(q),rope(k),v) if C["te"] else checkpoint_name(attend(rope(q),rope(k),v),"context")).reshape(*x.shape[:2],h*hd)
    x=x+checkpoint_name(a@c("o"),"out_proj")
    y=norm(x,p["n2"])
    g=checkpoint_name(y@c("w0"),"mlpwi_0"); u=checkpoint_name(y@c("w1"),"mlpwi_1")
    x=x+checkpoint_name((jax.nn.silu(g)*u)@c("w2"),"mlpwo")
    return con(x,("data","fsdp"),None,None)
NAMES=dict(full=["decoder_layer_input"],mwc="query_proj key_proj value_proj context out_proj mlpwi_0 mlpwi_1 mlpwo".split(), minimal="query_proj key_proj value_proj out_proj mlpwi_0 mlpwi_1 mlpwo".split())
blk = block if C["remat"]=="none" else jax.checkpoint(block, policy=jax.checkpoint_policies.save_only_these_names(*NAMES[C["remat"]]), prevent_cse=not C["scan"])
@jax.custom_vjp
def xent(l,t): return -jnp.sum(t*jax.nn.log_softmax(l),-1)
def fw(l,t):
    s=l-l.max(-1,keepdims=True); e=jnp.exp(s); z=jnp.sum(e,-1,keepdims=True); return -jnp.sum(t*(s-jnp.log(z)),-1),(t,e,z)
xent.defvjp(fw,lambda r,g:(g[...,None]*(r[1]/r[2]-r[0]),None))
def loss(p,tok,tgt):
    if C["iota"]: x=jax.nn.one_hot(tok,V,dtype=jnp.bfloat16)@p["embed"].astype(jnp.bfloat16)
    else: x=p["embed"].astype(jnp.bfloat16)[tok]
    x=con(x,("data","fsdp"),None,None)
    if C["scan"]: x,_=jax.lax.scan(lambda x,q:(blk(x,q),None),x,p["blocks"])
    else:
        for q in p["blocks"]: x=blk(x,q)
    x=norm(x,p["norm"])
    l=con((x@p["head"].astype(jnp.bfloat16)).astype(jnp.float32),("data","fsdp"),None,None)
    return jnp.mean(xent(l,jax.nn.one_hot(tgt,V)))
def step(p,m,v,tok,tgt):
    l,g=jax.value_and_grad(loss)(p,tok,tgt)
    n2=jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(g))); f=jnp.minimum(1.0,1.0/n2)
    def up(p,m,v,g):
        g=g*f; m=0.9*m+0.1*g; v=0.95*v+0.05*g*g
        return p-1e-4*(m/(jnp.sqrt(v)+1e-8)+0.1*p),m,v
    t=jax.tree.map(up,p,m,v,g); get=lambda i:jax.tree.map(lambda x:x[i],t,is_leaf=lambda x:isinstance(x,tuple))
    return get(0),get(1),get(2),l
def mk(shape,s): return jax.ShapeDtypeStruct(shape,jnp.float32,sharding=NamedSharding(mesh,s))
if C["scan"]: blocks={k:mk((L,*s),spec(ax,1)) for k,(s,ax) in sh.items()}
else: blocks=[{k:mk(s,spec(ax,0)) for k,(s,ax) in sh.items()} for _ in range(L)]
ps=dict(embed=mk((V,d),P(None,"fsdp")),head=mk((d,V),P("fsdp",None)),norm=mk((d,),P(None)),blocks=blocks)
tk=jax.ShapeDtypeStruct((B*n*C["D"],S),jnp.int32,sharding=NamedSharding(mesh,P(("data","fsdp"),None)))
outs=jax.tree.map(lambda x:x.sharding,ps)
f=jax.jit(step,donate_argnums=(0,1,2),out_shardings=(outs,outs,outs,None))
t0=time.time()
def val(v):
    if v in ("true","True"): return True
    if v in ("false","False"): return False
    return int(v) if v.lstrip("-").isdigit() else v
low=f.lower(ps,ps,ps,tk,tk)
c=low.compile(compiler_options={k:val(v) for k,v in dict(xla_gpu_autotune_level="0", **opts).items()})

try: m=c.memory_analysis()
except Exception as e: m=None; print(e)
if m is not None: print(case, f"{time.time()-t0:.0f}s", "args",m.argument_size_in_bytes,"out",m.output_size_in_bytes,"alias",m.alias_size_in_bytes,"temp",m.temp_size_in_bytes)
