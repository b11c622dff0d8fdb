"""Shapes of models with experts, from their published configurations.

D width, N query heads, K key-value heads, H head dimension, F inner size of an expert, E experts, V vocabulary.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    name: str
    D: int
    N: int
    K: int
    H: int
    F: int
    E: int
    top_k: int
    V: int
    router: str = "softmax"  # of all experts, then the largest; `softmax_after`: of the largest alone; `sigmoid`
    biases: bool = False  # of experts, and the clamped activation of GPT-OSS
    shared: int = 0  # experts that every token meets
    latent: bool = False  # attention of DeepSeek


MODELS = {
    model.name: model
    for model in [
        Model("qwen3-30b", 2048, 32, 4, 128, 768, 128, 8, 151936),
        Model("qwen3-235b", 4096, 64, 4, 128, 1536, 128, 8, 151936),
        Model("deepseek-v3", 7168, 128, 128, 192, 2048, 256, 8, 129280, router="sigmoid", shared=1, latent=True),
        Model("gpt-oss-120b", 2880, 64, 8, 64, 2880, 128, 4, 201088, router="softmax_after", biases=True),
        Model("mixtral-8x7b", 4096, 32, 8, 128, 14336, 8, 2, 32000, router="softmax_after"),
    ]
}
TINY = Model("tiny", 128, 4, 2, 32, 64, 8, 2, 512)
TINY_LATENT = Model("tiny-latent", 128, 4, 4, 48, 64, 16, 2, 512, router="sigmoid", shared=1, latent=True)
TINY_BIASES = Model("tiny-biases", 128, 4, 2, 32, 64, 8, 2, 512, router="softmax_after", biases=True)
MODELS |= {model.name: model for model in (TINY, TINY_LATENT, TINY_BIASES)}

# Layers without experts: F is the inner size of the one feed-forward network.
DENSE = {
    model.name: model
    for model in [Model("llama3-8b", 4096, 32, 8, 128, 14336, 0, 0, 128256), Model("tiny-dense", 128, 4, 2, 32, 256, 0, 0, 512)]
}
