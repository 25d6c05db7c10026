"""The REST API of e-mails. Imported by config.urls; orders.api imports its serializers."""
