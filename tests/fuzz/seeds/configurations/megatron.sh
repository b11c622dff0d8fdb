#!/bin/bash
TP=4
ARGS=(
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
  --num-attention-heads 32 --group-query-attention --num-query-groups 8
  --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope
  --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights
  --micro-batch-size 1 --global-batch-size 128 --bf16 --lr 3e-4
  --tensor-model-parallel-size $TP --sequence-parallel --use-distributed-optimizer --no-rope-fusion
)
torchrun --nproc_per_node 8 pretrain_gpt.py ${ARGS[@]}
