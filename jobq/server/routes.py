"""Which endpoint a path and a method name."""

from collections.abc import Sequence

from jobq.server.endpoint import Endpoint
from jobq.server.error_responses import RequestRefused


class Routes:
    """Finds the endpoint of a path."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._fixed: dict[str, dict[str, Endpoint]] = {}
        self._variable: list[tuple[tuple[str, ...], dict[str, Endpoint]]] = []
        for endpoint in endpoints:
            if "{" not in endpoint.path:
                self._fixed.setdefault(endpoint.path, {})[endpoint.method] = endpoint
                continue
            parts = tuple(endpoint.path.split("/"))
            methods = next((known for each, known in self._variable if each == parts), None)
            if methods is None:
                methods = {}
                self._variable.append((parts, methods))
            methods[endpoint.method] = endpoint

    def find(self, method: str, path: str) -> tuple[Endpoint, dict[str, str]]:
        """Return the endpoint, and the variable parts of the path; raises RequestRefused."""
        variables: dict[str, str] = {}
        methods = self._fixed.get(path)
        if methods is None or method not in methods:
            given = path.split("/")
            for parts, known in self._variable:
                if len(parts) == len(given) and all(
                    part[:1] == "{" or part == word for part, word in zip(parts, given, strict=True)
                ):
                    variables = {part[1:-1]: word for part, word in zip(parts, given, strict=True) if part[:1] == "{"}
                    if methods is None or method in known:
                        methods = known
                    break
        if methods is None or any(not word for word in variables.values()):
            raise RequestRefused(404, "no_such_path", "there is nothing here; /openapi.json has what there is")
        endpoint = methods.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            raise RequestRefused(
                405, "no_such_method", f"not with {method[:20]!a}", headers=(("Allow", ", ".join(sorted(methods))),)
            )
        return endpoint, variables
