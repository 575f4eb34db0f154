"""The proxy by which a service is reached, as the environment names it."""

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from jobq.errors import ConfigurationError


def proxy_for(scheme: str, host: str) -> str | None:
    """Return the URL of the proxy for a host, perhaps with its port; None = it is reached without one.

    Raises:
        ConfigurationError: HTTP_PROXY, or HTTPS_PROXY, is no such URL; it is not shown, for it may hold a password.
    """
    given = getproxies().get(scheme)
    if not given or proxy_bypass(host):
        return None
    proxy = given if "://" in given else f"http://{given}"
    try:
        parts = urlsplit(proxy)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or any(character.isspace() for character in proxy):
        raise ConfigurationError(f"{scheme.upper()}_PROXY is no address of a proxy; write http://HOST:PORT")
    return proxy
