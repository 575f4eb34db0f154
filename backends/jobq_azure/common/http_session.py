"""Sessions of HTTP that send each request once, and proxies as the SDK takes them."""

from typing import Final
from urllib.parse import urlsplit

import aiohttp

from jobq.errors import ConfigurationError
from jobq.formats.proxies import proxy_for

_MOST_CONNECTIONS: Final = 100  # as aiohttp has it by itself


async def new_session(most_connections: int = _MOST_CONNECTIONS) -> aiohttp.ClientSession:
    """Return a session that never repeats a request by itself; raises ConfigurationError.

    Args:
        most_connections: at once; 0 = no limit, for who keeps long polls: a renewal must not wait behind them.

    aiohttp sends a PUT or DELETE again when a kept connection breaks. The first may have taken effect: then the second
    meets a receipt that the first has used up, and reads as a lost lease (S5).
    """
    # Not trust_env, which would sign requests by ~/.netrc too; the proxies of the environment are read below.
    session = aiohttp.ClientSession(auto_decompress=False, connector=aiohttp.TCPConnector(limit=most_connections))
    if not hasattr(session, "_retry_connection"):
        await session.close()
        raise ConfigurationError(f"aiohttp {aiohttp.__version__} cannot be kept from repeating requests: upgrade it")
    session._retry_connection = False  # noqa: SLF001 - there is no public way; a test at the wire holds it
    return session


def proxies_for(url: str) -> dict[str, str]:
    """Return the proxy for an address, by its scheme, as the SDK takes it; raises ConfigurationError."""
    proxy = proxy_for(url)
    return {} if proxy is None else {urlsplit(url).scheme: proxy}
