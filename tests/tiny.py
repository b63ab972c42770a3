"""Tiny random targets of every family, tiny heads, and a drafter whose drafts are often accepted.

Sizes differ per axis (primes where the model allows), so that a transposed tensor cannot pass.
Weights are scaled up: argmax then varies from token to token.
"""

import copy

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter, DraftTree
from eagle_fsd.drafters.tree_grower import TreeGrower, TreeShape
from eagle_fsd.engine.select import ENGINES
from eagle_fsd.heads.draft_head import DraftHead, Eagle3Head, build_head
from eagle_fsd.heads.head_config import HeadConfig

BOS = 2  # first token of every prompt
WINDOW = 7
SIZES = {
    "vocab_size": 101,
    "hidden_size": 40,
    "intermediate_size": 53,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 251,
    "tie_word_embeddings": False,
    "bos_token_id": BOS,
    "eos_token_id": None,
    "pad_token_id": None,
}
WIDE = SIZES | {"head_dim": 14}
# a tuple: a config may change the list that it is given, and each gets one of its own
MIXED = ("sliding_attention", "full_attention", "sliding_attention")
for_model = AutoConfig.for_model
FAMILIES = {
    "llama": lambda: for_model("llama", **WIDE),
    "qwen2": lambda: for_model("qwen2", **SIZES),
    "qwen2_sliding": lambda: for_model(
        "qwen2", **SIZES, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3": lambda: for_model("qwen3", **WIDE),
    "mistral": lambda: for_model("mistral", **WIDE, sliding_window=None),
    "mistral_sliding": lambda: for_model("mistral", **WIDE, sliding_window=WINDOW),
    # torch's grouped matmul wants rows of 16 bytes, so no prime here
    "mixtral": lambda: for_model(
        "mixtral", **WIDE | {"intermediate_size": 52}, num_local_experts=5, num_experts_per_tok=2
    ),
    "gemma3": lambda: for_model(
        "gemma3_text",
        **WIDE,
        query_pre_attn_scalar=14,
        sliding_window=WINDOW,
        layer_types=list(MIXED),
    ),
}
LAYERS = 7  # 2, 3 and 4 are upstream's fused layers of a target with seven
SLIDING = ("qwen2_sliding", "mistral_sliding", "gemma3")


def random_model(
    config: PretrainedConfig, *, seed: int, attention: str = "sdpa", scale: float = 1.5
) -> PreTrainedModel:
    """A float32 model of bfloat16 numbers, drawn from `seed` alone."""
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=attention
    )
    randomize(model, seed=seed, scale=scale)
    return model.eval().requires_grad_(False)


def randomize(module: torch.nn.Module, *, seed: int, scale: float) -> None:
    """Matrices keep the size of what they act on, times `scale`; biases and norms vary by 0.1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("bias"):
                parameter.copy_(0.1 * noise)
            elif parameter.ndim == 1:  # a norm: around the constant that it was made with
                parameter.add_(0.1 * noise)
            elif "embed" in name:
                parameter.copy_(noise)
            else:
                parameter.copy_(noise * scale / parameter.shape[-1] ** 0.5)
            parameter.copy_(parameter.bfloat16())  # as most models are stored


EAGER = [name for name in ENGINES if name != "compiled"]  # which takes many seconds


def tiny_target(
    family: str, *, seed: int = 0, attention: str = "sdpa", engine: str = "stock"
) -> Target:
    model = random_model(FAMILIES[family](), seed=seed, attention=attention)
    return Target(model, engine=ENGINES[engine]())


def tiny_head(
    target: Target | None = None, *, seed: int = 0, scale: float = 1.0, **changes
) -> DraftHead:
    """A random float32 head for the target, or one of SIZES; `changes` replace fields of its
    HeadConfig."""
    config = {
        "hidden_size": target.hidden_size if target else SIZES["hidden_size"],
        "intermediate_size": 59,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": target.vocab_size if target else SIZES["vocab_size"],
    }
    head = build_head(HeadConfig(**config | changes)).eval()
    randomize(head, seed=seed, scale=scale)
    if head.d2t is not None:
        # ascending token ids, neither the first nor consecutive
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randperm(101, generator=generator)[: head.d2t.shape[0]]
        head.set_draft_tokens(ids.sort().values)
    return head


def prompt_tokens(length: int, *, seed: int = 0, vocab_size: int = SIZES["vocab_size"]) -> list:
    """BOS and then random tokens."""
    generator = torch.Generator().manual_seed(seed)
    rest = torch.randint(0, vocab_size, (length - 1,), generator=generator)
    return [BOS, *rest.tolist()]


def tiny_head3(**changes) -> Eagle3Head:
    """An EAGLE-3 head for a target of SIZES."""
    return tiny_head(head_type="eagle3", **changes)


def fused_target(family: str = "llama", *, seed: int = 0, layers: tuple[int, ...] = (2, 3, 4)):
    """A random target with seven layers that gives the hidden states an EAGLE-3 head reads."""
    config = FAMILIES[family]()
    if getattr(config, "layer_types", None):
        config.layer_types = (config.layer_types * 3)[:LAYERS]
    config.num_hidden_layers = LAYERS
    return Target(random_model(config, seed=seed), feature_layers=layers)


HEADS = {
    "eagle3": {},
    "eagle3, own layers": {"feature_layers": (0, 6, 1), "head_dim": 14},
    "eagle3, 37 tokens": {"draft_vocab_size": 37, "num_key_value_heads": 1},
    "eagle3, normed residual": {"draft_vocab_size": 37, "norm_before_residual": True},
    "eagle": {},
    "eagle, 37 tokens": {"draft_vocab_size": 37},
    "eagle, biases": {"qkv_bias": True, "bias": False},
    "eagle, two layers": {"num_hidden_layers": 2},
}


# what publishers of EAGLE-3 heads add, each of it in one of them
PUBLISHED = {
    "eagle3, q and k normed, two layers": {
        "qk_norm": True,
        "num_hidden_layers": 2,
        "rms_norm_eps": 0.3,
        "rope_theta": 500000.0,
    },
    "eagle3, four states normed": {
        "fc_norm": True,
        "norm_output": True,
        "feature_layers": (1, 2, 4, 6),
        "draft_vocab_size": 37,
    },
    "eagle3, another width": {
        "hidden_size": 24,
        "target_hidden_size": SIZES["hidden_size"],
        "norm_before_fc": True,
    },
    "eagle3, last state": {"use_aux_hidden_state": False, "own_lm_head": False},
    "eagle, q and k normed": {"qk_norm": True, "num_hidden_layers": 2},
}


def target_and_head(
    name: str, *, family: str = "llama", seed: int = 0, scale: float = 1.0
) -> tuple[Target, DraftHead]:
    """A head of HEADS or PUBLISHED, and a target that it reads."""
    fields = (HEADS | PUBLISHED)[name]
    head = tiny_head(seed=seed, scale=scale, head_type=name.split(",")[0], **fields)
    return fused_target(family, seed=seed, layers=head.config.fused_layers(LAYERS)), head


class NoisyTargetDrafter(Drafter):
    """Grows trees from the target's own logits, sharpened, plus seeded noise, which sets how deep
    paths are accepted."""

    def __init__(self, target: Target, tree: TreeConfig, *, noise: float = 0.0, seed: int = 0):
        self.target, self.tree_config, self.noise, self.seed = target, tree, noise, seed
        self.max_nodes = tree.num_draft_tokens + 1

    def begin(self, capacity: int, first_token: int, sampling=None, seed: int = 0):
        own = copy.copy(self)
        own._tokens = [first_token]
        own._generator = torch.Generator().manual_seed(self.seed)
        return own

    def observe(self, features_TD: torch.Tensor, next_tokens: list[int], logits_NV=None) -> None:
        self._tokens += next_tokens

    @torch.inference_mode()
    def propose(self) -> DraftTree:
        grower = TreeGrower(TreeShape(self.tree_config))
        path_KT = torch.tensor([self._tokens])
        for level in range(self.tree_config.tree_depth):
            if level:
                token_K, slot_K = grower.frontier()
                path_KT = torch.cat([path_KT[slot_K], token_K[:, None]], dim=1)
            logits_KV = self.target.model(path_KT, use_cache=False).logits[:, -1]
            noise_KV = torch.randn(logits_KV.shape, generator=self._generator)
            grower.add_level(4 * (logits_KV + self.noise * noise_KV))
        return grower.finish(torch.tensor(self._tokens[-1]))
