"""The language model behind an agent; the only folder that imports transformers and peft."""
