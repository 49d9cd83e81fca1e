"""``connectors.dynamodb``: rows as items of a table of Amazon DynamoDB."""

from .sink import DynamoDbSink

__all__ = ["DynamoDbSink"]
