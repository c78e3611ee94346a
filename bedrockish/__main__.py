"""``python -m bedrockish``: the program ``bedrockish``."""

from bedrockish.cli.main import main

if __name__ == "__main__":
    main()
