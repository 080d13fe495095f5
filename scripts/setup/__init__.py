"""What scripts/bootstrap.py does, one module per kind of thing it installs."""
