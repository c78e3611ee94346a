"""``python -m bedrockish``: the program ``bedrockish``."""

from bedrockish.cli.main import main

main()
