"""What everything stands on: errors and their texts, options, secrets, clients, retries, what is kept as JSON."""
