"""`python -m ovserve`, the same as the command `ovserve`."""

from ovserve.cli import main

if __name__ == "__main__":
    main()
