"""What Wen et al. 2024 (arXiv:2405.15821) report, to be put beside what was measured here.

The learning curves of the paper (Overcooked, VirtualHome, the ablations of gamma_a and gamma_w) are pictures, whose
numbers are not known here. Returns of the generalisation table are discounted by 0.95 for each step, over 100
episodes; the untrained model is LLaMA-2-7B. Cells that are not here could not be found out.
"""

from __future__ import annotations

__all__ = ["GAMMA_W", "GENERALISATION", "GENERALISATION_UNTRAINED", "RETENTION", "VARIANTS"]

GAMMA_W = (0.95, 0.9, 0.8, 0.5)
"""Discounts inside an action that the ablation of NTPO tries, each with gamma_a = 0.95."""

VARIANTS: dict[str, str] = {
    "VirtualHome-FoodPreparation-Cheese": "cheese",
    "VirtualHome-FoodPreparation-Hamburger": "hamburger",
    "VirtualHome-FoodPreparation-ApplePie": "apple pie",
    "VirtualHome-FoodPreparation-Pizza": "pizza",
    "VirtualHome-FoodPreparation-WashingPlate": "washing plate",
    "VirtualHome-FoodPreparation-Laundry": "laundry",
}
"""Tasks that the agent has not seen -> how tables call them."""

GENERALISATION: dict[tuple[str, str], float] = {
    ("poad", "cheese"): 0.7553,
    ("ntpo", "cheese"): 0.7428,
    ("poad", "hamburger"): 0.7602,
    ("ntpo", "hamburger"): 0.7476,
    ("poad", "apple pie"): 0.7650,
    ("ntpo", "apple pie"): 0.7141,
    ("twosome", "apple pie"): 0.7304,
    ("poad", "pizza"): 0.7625,
    ("ntpo", "pizza"): 0.7355,
    ("poad", "washing plate"): 0.7075,
    ("ntpo", "washing plate"): 0.7491,
    ("poad", "laundry"): 0.7014,
    ("ntpo", "laundry"): 0.5687,
}
"""(trained with, evaluated on) -> discounted return of an agent that was trained on Food Preparation."""

GENERALISATION_UNTRAINED: dict[str, float] = {"apple pie": 0.1656}
"""Evaluated on -> that of the untrained model; 0.13 to 0.17 on the others."""

RETENTION: dict[str, tuple[float, float]] = {
    "arc_challenge": (0.44, 0.45),
    "hellaswag": (0.57, 0.59),
    "piqa": (0.78, 0.78),
    "mmlu": (0.41, 0.41),
}
"""Task of lm_eval -> zero-shot accuracy of LLaMA-2-7B, and of the model after POAD."""
