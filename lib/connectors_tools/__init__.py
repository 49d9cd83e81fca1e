"""What a person runs: the commands of ``python -m connectors`` and what they are made of. No job carries it."""
