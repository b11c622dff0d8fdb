#!/bin/bash
export EXECUTABLE="train"
export DATASET_TYPE="synthetic"
export REUSE_EXAMPLE_BATCH=1
export LIBTPU_INIT_ARGS="--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true --xla_tpu_megacore_fusion_allow_ags=false --xla_enable_async_collective_permute=true --xla_tpu_enable_ag_backward_pipelining=true --xla_tpu_enable_data_parallel_all_reduce_opt=true --xla_tpu_data_parallel_opt_different_sized_ops=true --xla_tpu_enable_async_collective_fusion=true --xla_tpu_enable_async_collective_fusion_multiple_steps=true --xla_tpu_overlap_compute_collective_tc=true --xla_enable_async_all_gather=true"
python3 -m maxtext.trainers.pre_train.$EXECUTABLE base.yml \
    model_name=llama2-7b \
    base_output_directory=$OUTPUT_PATH \
    tokenizer_path=tokenizer.llama2 \
    remat_policy=minimal \
    per_device_batch_size=4 \
    steps=30 \
    enable_checkpointing=false \
    use_iota_embed=true \
    max_target_length=4096 \
    profiler=xplane \
    skip_first_n_steps_for_profiler=10 \
    profiler_steps=5 \
    gcs_metrics=true \
    dataset_type=$DATASET_TYPE \
    reuse_example_batch=$REUSE_EXAMPLE_BATCH
