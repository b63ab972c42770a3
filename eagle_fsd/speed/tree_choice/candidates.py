"""The trees that tuning chooses among."""

from eagle_fsd.config import TreeConfig

DRAFTS = (*range(1, 17), 17, 19, 21, 23, 25, 27, 29, 31, 35, 39, 43, 47, 51, 55, 59)
DEPTHS = tuple(range(1, 9))
BRANCHES = (1, 2, 3, 4, 6, 8, 10)
# A tree with more drafts a level than this is never the best, and would have to be verified.
DRAFTS_PER_LEVEL = 12


def candidate_trees(draft_vocab_size: int) -> tuple[TreeConfig, ...]:
    """All shapes of the grid that TreeConfig allows, the smallest first.

    Args:
        draft_vocab_size: number of tokens that the head can draft; bounds branch_top_k.
    """
    trees = []
    for drafts in DRAFTS:
        for depth in DEPTHS:
            for branch in BRANCHES:
                pool = TreeConfig(depth, depth, branch).pool_size
                fits = depth <= drafts <= min(pool, DRAFTS_PER_LEVEL * depth)
                if fits and branch <= draft_vocab_size:
                    trees.append(TreeConfig(drafts, depth, branch))
    return tuple(trees)


def surveyed_tree(trees: tuple[TreeConfig, ...]) -> TreeConfig:
    """The shape whose pool of candidates holds all these trees; it keeps the whole pool."""
    depth = max(tree.tree_depth for tree in trees)
    branch = max(tree.branch_top_k for tree in trees)
    return TreeConfig(TreeConfig(depth, depth, branch).pool_size, depth, branch)
