"""Library of the guest's heat-config programs. Standard library only, Python 3.9 and later."""
