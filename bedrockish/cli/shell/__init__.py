"""The shell ``bedrockish sql``."""
