"""The ground floor of the library: errors and their texts, options, secrets, clients, retries, what is kept as JSON."""
