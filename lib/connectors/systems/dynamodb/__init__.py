"""``connectors.dynamodb``: rows as items of a table of Amazon DynamoDB, and its items as rows."""

from .sink import DynamoDbSink
from .source import DynamoDbSource

__all__ = ["DynamoDbSink", "DynamoDbSource"]
