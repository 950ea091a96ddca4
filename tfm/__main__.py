"""`python -m tfm COMMAND` is `tfm COMMAND`."""

from tfm.commands.main import main

if __name__ == "__main__":
    main()
