"""``python -m tapfinger``: the command line."""

from tapfinger.cli import main

if __name__ == "__main__":
    main()
