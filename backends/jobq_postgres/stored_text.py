"""Texts as they are stored."""


def bytes_of(text: str) -> bytes:
    """Return any text as bytes: PostgreSQL's own text takes no NUL, and UTF-8 no lone surrogate."""
    return text.encode("utf-8", "surrogatepass")


def text_of(stored: bytes) -> str:
    """Return what `bytes_of` was given."""
    return stored.decode("utf-8", "surrogatepass")
