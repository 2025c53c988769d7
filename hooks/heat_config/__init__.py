"""What the guest's heat-config programs share. Standard library only, Python 3.9 and later."""
