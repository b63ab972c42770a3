"""No test reaches for a model hub; set before huggingface_hub is imported."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
