"""zerostage: which ZeRO stage, on how many GPUs, and did this change make it worse?"""

__version__ = "0.1.0"
