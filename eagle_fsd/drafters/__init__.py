"""What proposes a round's tree.

settings.py          drafters by name, with their parameters
eagle.py             dynamic trees of a draft head
language_model.py    or of a second language model
growing.py           what these two share; tree_grower.py how EAGLE-2 grows a tree
ngram.py             what followed the same tokens before in the text
hybrid.py            both: continuations grafted onto the head's tree
"""
