"""Azure Storage Queue, and blobs beside it."""
