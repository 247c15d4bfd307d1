"""What a ZeRO stage is: definitions, DeepSpeed configuration, and theory."""
