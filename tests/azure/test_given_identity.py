"""DEFAULT_IDENTITY_CLIENT_ID, by which Azure Machine Learning names the identity that a job is given."""

import pytest
from azure.identity.aio import ManagedIdentityCredential

from jobq.errors import ConfigurationError
from jobq_azure.common.credentials import Identity


@pytest.mark.parametrize("given", ["11111111-2222-3333-4444-555555555555", None])
async def test_the_identity_of_a_job(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    """No identity service runs here: what the SDK's credential is made with is looked at."""
    asked = []

    def made(_: ManagedIdentityCredential, **options: object) -> None:
        asked.append(options.get("client_id"))
        raise ValueError("none here")  # as the SDK says it where there is no identity service

    monkeypatch.delenv("AZURE_CLIENT_ID", raising=False)
    if given is not None:
        monkeypatch.setenv("DEFAULT_IDENTITY_CLIENT_ID", given)
    monkeypatch.setattr(ManagedIdentityCredential, "__init__", made)
    with pytest.raises(ConfigurationError, match="none here"):
        Identity("account")
    assert asked == [given]
