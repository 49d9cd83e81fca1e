"""The commands of ``python -m connectors``, which a person runs, and what they are made of. No job carries this package."""
