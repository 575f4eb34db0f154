"""The proxy that the environment names for an address."""

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from jobq.errors import ConfigurationError


def proxy_for(url: str) -> str | None:
    """Return the URL of the proxy for an address; None = none.

    Args:
        url: whose scheme and host decide: HTTP_PROXY or HTTPS_PROXY, but for hosts in NO_PROXY.

    Raises:
        ConfigurationError: the variable holds no URL of an HTTP proxy. The message does not hold its value, which may
            hold a password.
    """
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if proxy is None or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    name = f"{parts.scheme.upper()}_PROXY"
    try:
        found = urlsplit(proxy)
        if found.hostname and (found.port is None or found.port > 0) and not (found.query or found.fragment):
            if found.scheme in {"http", "https"}:
                return proxy
            raise ConfigurationError(
                f"{name} names a proxy that does not speak HTTP; jobq goes through HTTP proxies only"
            )
    except ValueError:  # its port is no number: what stands before a # or / of a password
        pass
    raise ConfigurationError(
        f"{name} is not a URL that can be read; write http://USER:PASSWORD@HOST:PORT, with %23 for a # and %2F for a /"
        " in the password"
    )
