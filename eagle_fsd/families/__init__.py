"""What is known of families of transformers models, by their configs: where the text model is, how
it makes logits, and which of them can verify draft trees."""
