"""Rank r of N in one process: DeepSpeed's, torch's and transformers' own code, on tensors without memory."""
