"""Fuzzy Speculative Decoding (FSD) in EAGLE-2: all of it, in one file to read from top to bottom.

    python one_file.py [TARGET_FOLDER HEAD_FOLDER] [T]

A small draft head guesses how the text goes on: not one continuation, but a tree of them. The large
model, the target, reads the whole tree in one forward pass, and drafts are kept that it would have
written itself. So far this is EAGLE-2 (arXiv 2406.16858), and lossless. Where the target's own
token was not drafted, FSD (arXiv 2502.20704; here in its first author's form of 2026, TensorRT-LLM
#10481) asks how far apart the two models' distributions of the next token are. If their divergence
is at most the threshold T, a draft is kept all the same, as a fuzzy token. With T = 0 none is.

Here: one answer, greedy or sampled, by a stock Llama-like model and an EAGLE-1/2 head of one layer,
in float32 on a CPU. Not here: speed (the head has not even a cache), sliding windows, recurrent
layers, EAGLE-3, other rules, top-k and top-p, and checks of what is asked. The library has these;
tests hold it equal to this file token for token (tests/test_one_file.py).

A node of a tree is named by the tokens that lead to it from the root, which is the text's last
token: () is the root, ("so",) a child of it, and ("so", "clear") a child of that. Names of tensors
end in their axes: N nodes, M tokens that a model reads at once, S these and all before them, C
children, D hidden size, V vocabulary, R what of it the head drafts, P places of the answer.
"""

import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding


@torch.inference_mode()
def generate(target, head, prompt, threshold, stop, budget, tree=(15, 4, 6), temperature=0, seed=0):
    """The answer's tokens, which of them are fuzzy, and how many tokens every round emitted."""
    # Each place of the answer has a random number: of the library's three the first.
    uniform_P3 = torch.rand(budget + tree[1], 3, generator=torch.Generator().manual_seed(seed))
    # Prefill: the target reads the prompt and writes the first token, which is the first root.
    cache = DynamicCache()
    logits_MV, feature_SD = read(target, cache, prompt, [()])
    answer, fuzzy, rounds = [draw(logits_MV[-1], temperature, uniform_P3[0, 0])], [False], []
    while not stop.intersection(answer) and len(answer) < budget:
        # The target has read the text but for the root. Features are its last hidden states.
        text = prompt + answer
        assert cache.get_seq_length() == len(feature_SD) == len(text) - 1
        # 1. Propose: the head drafts a tree below the root, by default of 15 drafts on 4 levels.
        nodes, draft_logits = propose(head, text, feature_SD, *tree)
        # 2. Verify: the target reads the tree, and says what it would write after each node.
        logits_NV, feature_ND = read(target, cache, text[-1:], nodes)
        logits, uniform_P = dict(zip(nodes, logits_NV, strict=True)), uniform_P3[len(answer) :, 0]
        # 3. Accept: some drafts, from the root down, and one token more, which is the next root.
        new, flags = accept(logits, draft_logits, threshold, stop, temperature, uniform_P)
        # 4. Commit: the target forgets all nodes but the path, the root and the accepted drafts.
        path = [nodes.index(new[:depth]) for depth in range(len(new))]
        commit(cache, len(text) - 1, path)
        feature_SD = torch.cat([feature_SD, feature_ND[path]])
        answer, fuzzy, rounds = [*answer, *new], [*fuzzy, *flags], [*rounds, len(new)]
    # A stop token or the end of the budget may have come amid the last round.
    end = min([budget, *(place + 1 for place, token in enumerate(answer) if token in stop)])
    return answer[:end], fuzzy[:end], rounds


def propose(head, text, feature_SD, num_drafts, num_levels, num_children):
    """EAGLE-2's dynamic tree: its nodes, and the head's logits [V] after those it has expanded.

    The head reads a token with the feature of the one before, and drafts the one after. Below the
    root its own outputs stand for features. For the text "The sky is" and the node ("so",):

        reads      sky      is           so
        with       f(The)   f(sky)       output of "is"
        drafts     -        blue, so     clear
    """
    score, level, expanded = {(): torch.zeros(())}, [()], [()]
    for depth in range(1, num_levels + 1):
        # Expansion (section 4.1): the head reads the text, and the nodes expanded so far. The best
        # of the last level get children. A score is the log-probability of a node's tokens.
        output_SD, logits_NV = head(text[1:], expanded, feature_SD)
        draft_logits = dict(zip(expanded, logits_NV, strict=True))
        for node in level:
            logp_C, token_C = torch.log_softmax(draft_logits[node], -1).topk(num_children)
            children = [(*node, token) for token in token_C.tolist()]
            score |= zip(children, score[node] + logp_C, strict=True)
        # The best new nodes are the next level. Of equals the first is better: the sort is stable.
        ranked = sorted(score, key=score.get, reverse=True)
        level = [node for node in ranked if len(node) == depth][:num_children]
        # With them the head reads its outputs at their parents; the nodes' rows are the last ones.
        parent_row = [expanded.index(node[:-1]) - len(expanded) for node in level]
        feature_SD = torch.cat([feature_SD, output_SD[parent_row]])
        expanded = expanded + level
    # Reranking (section 4.2): the best of all. Parents are among them: no child scores more.
    return ranked[: 1 + num_drafts], draft_logits


def accept(logits, draft_logits, threshold, stop, temperature, uniform_P):
    """The tokens that a round emits, and which are fuzzy. Logits are by node, [V] of the next."""
    new, fuzzy = (), []
    while True:
        drafted = [node[-1] for node in logits if node and node[:-1] == new]
        drafted = drafted if stop.isdisjoint(new) else []  # Drafts behind an end are of no use.
        # The exact test, EAGLE-2's: what the target itself writes here, drafted or not.
        token = exact = draw(logits[new], temperature, uniform_P[len(new)])
        # The fuzzy test: if it was not, but the models agree, the target's favourite draft will do.
        if drafted and exact not in drafted and threshold > 0:
            if divergence(logits[new], draft_logits[new]) <= threshold:
                token = drafted[logits[new][drafted].argmax()]
        new, fuzzy = (*new, token), [*fuzzy, token != exact]
        if token not in drafted:
            return new, fuzzy


def draw(logits_V, temperature, uniform):
    """A token of the target's: its likeliest at temperature 0, else drawn by a number in [0, 1)."""
    if temperature == 0:
        return int(logits_V.argmax())
    cumulative_V = torch.softmax(logits_V / temperature, -1).double().cumsum(-1)
    return int(torch.searchsorted(cumulative_V, uniform * cumulative_V[-1], right=True))


def divergence(logits_V, draft_logits_V):
    """Jensen-Shannon's (temperature 1), in nats: entropy of the mean less mean of the entropies."""
    p_2V = torch.softmax(torch.stack([logits_V, draft_logits_V]).double(), -1)
    return torch.special.entr(p_2V.mean(0)).sum() - torch.special.entr(p_2V).sum(1).mean()


def laid_out(text, nodes, known=0):
    """Tree attention: a text and the nodes below its last token, the root, as a model reads them
    behind known tokens. Ids [1, M], mask [1, 1, M, S] to add to scores, positions [1, M].

    A node sees the text, the nodes above it and itself, and stands behind all that it sees. Example
    of the text "sky is", the nodes () ("so",) ("so", "clear") ("blue",) and the known token "The":

        reads     sees  The  sky  is  so  clear  blue     at position
        sky              x    x                               1
        is               x    x    x                          2
        so               x    x    x   x                      3
        clear            x    x    x   x    x                 4
        blue             x    x    x               x          3
    """
    token_M = torch.tensor([*text, *(node[-1] for node in nodes[1:])])
    sees_MS = torch.ones(len(token_M), known + len(token_M)).tril(known).bool()
    is_above_NN = torch.tensor([[node[: len(other)] == other for other in nodes] for node in nodes])
    sees_MS[-len(nodes) :, -len(nodes) :] = is_above_NN
    mask_MS = torch.zeros(sees_MS.shape).masked_fill(~sees_MS, -torch.inf)
    return token_M[None], mask_MS[None, None], sees_MS.sum(1)[None] - 1


def read(target, cache, text, nodes):
    """The target's logits [M, V] of the token AFTER each, and features [M, D]; the cache grows."""
    # The cache is the fourth argument, whose name depends on the version of transformers.
    out = target(*laid_out(text, nodes, cache.get_seq_length()), cache, output_hidden_states=True)
    return out.logits[0], out.hidden_states[-1][0]


def commit(cache, length, path):
    """Keep the rows of text and path: of a text of 3 and a path 0 2 3 the rows 0 1 2 and 3 5 6."""
    row_S = torch.tensor([*range(length), *(length + node for node in path)])
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, row_S], layer.values[:, :, row_S]


class Head:
    """EAGLE-1/2's (arXiv 2401.15077): a stock layer between the target's embedding and lm_head."""

    def __init__(self, folder, target):
        config = LlamaConfig.from_pretrained(folder, attn_implementation="eager")
        weights = load_file(f"{folder}/model.safetensors")
        self.embed, self.lm_head_VD = target.get_input_embeddings(), target.lm_head.weight
        # It drafts the token of id i + d2t[i] for each of its rows i; without d2t all tokens.
        offset_R = weights.pop("d2t", torch.zeros(config.vocab_size, dtype=torch.int64))
        self.token_R = torch.arange(len(offset_R)) + offset_R
        self.fc = [weights.pop(key).float() for key in ("fc.weight", "fc.bias") if key in weights]
        self.rotary, self.layer = LlamaRotaryEmbedding(config), LlamaDecoderLayer(config, 0)
        self.layer.input_layernorm = torch.nn.Identity()  # EAGLE's layer has none
        self.layer.load_state_dict({key.removeprefix("layers.0."): weights[key] for key in weights})

    def __call__(self, text, nodes, feature_SD):
        """Outputs [S, D] for a text and the nodes below its last token, and logits [N, V]."""
        ids, mask, positions = laid_out(text, nodes)
        x_1SD = torch.cat([self.embed(ids), feature_SD[None]], -1)
        x_1SD = torch.nn.functional.linear(x_1SD, *self.fc)
        output_SD = self.layer(x_1SD, mask, position_embeddings=self.rotary(x_1SD, positions))[0]
        logits_NV = torch.full((len(nodes), len(self.lm_head_VD)), -torch.inf)
        logits_NV[:, self.token_R] = output_SD[-len(nodes) :] @ self.lm_head_VD[self.token_R].T
        return output_SD, logits_NV


if __name__ == "__main__":
    folders = sys.argv[1:]
    threshold = float(folders.pop()) if len(folders) % 2 else 0.3
    if not folders:  # Here alone the library is used: it knows where its own target and head lie.
        from eagle_fsd.models.load import SHIPPED_HEAD, embedded_target

        folders = [embedded_target(), SHIPPED_HEAD]
    target = AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folders[0])
    question = [{"role": "user", "content": "What is photosynthesis?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True)["input_ids"]
    stop = {tokenizer.eos_token_id}
    answer, fuzzy, rounds = generate(target, Head(folders[1], target), prompt, threshold, stop, 96)
    for token, is_fuzzy in zip(answer, fuzzy, strict=True):
        print(f"[{tokenizer.decode(token)}]" if is_fuzzy else tokenizer.decode(token), end="")
    print(f"\n{len(answer)} tokens in {len(rounds)} rounds, {sum(fuzzy)} of them [fuzzy]")
