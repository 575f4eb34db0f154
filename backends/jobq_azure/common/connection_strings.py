"""Connection strings of Azure: NAME=VALUE;NAME=VALUE."""


def unquoted(text: str) -> str:
    """Return a connection string without the quotes around it that an env file or a copied shell line leaves."""
    text = text.strip()
    return text[1:-1].strip() if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0] else text


def fields_of(text: str) -> dict[str, str]:
    """Return the values of a connection string by their names in small letters; a value may hold an `=`."""
    pairs = (part.partition("=") for part in unquoted(text).strip(";").split(";"))
    return {name.strip().lower(): value.strip() for name, _, value in pairs if value.strip()}
