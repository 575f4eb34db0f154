"""What KEDA 2.20 takes of the resources that deploy/ uses: a stranger's key is refused, which its schema does not do.

From the custom resource definitions and the scalers' documentation of that version;
only fields that we use or might, so that a mistyped one is found.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class AzureQueue(_Strict):
    """The scaler `azure-queue`; each value is a string."""

    account_name: str
    queue_name: str
    queue_length: str = "5"
    activation_queue_length: str = "0"
    queue_length_strategy: Literal["all", "visibleonly"] = "all"
    cloud: str = "AzurePublicCloud"
    endpoint_suffix: str = ""


class AzureServiceBus(_Strict):
    """The scaler `azure-servicebus`."""

    namespace: str
    queue_name: str
    message_count: str = "5"
    activation_message_count: str = "0"
    cloud: str = "AzurePublicCloud"
    endpoint_suffix: str = ""


class PostgreSql(_Strict):
    """The scaler `postgresql`."""

    host: str
    port: str
    user_name: str
    db_name: str
    sslmode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
    query: str
    target_query_value: str
    activation_target_query_value: str = "0"


_SCALERS: dict[str, type[BaseModel]] = {
    "azure-queue": AzureQueue,
    "azure-servicebus": AzureServiceBus,
    "postgresql": PostgreSql,
}


class _Reference(_Strict):
    name: str
    kind: Literal["TriggerAuthentication", "ClusterTriggerAuthentication"] = "TriggerAuthentication"


class Trigger(_Strict):
    """One scaler and how it signs in."""

    type: str
    metadata: dict[str, str]
    authentication_ref: _Reference

    @model_validator(mode="after")
    def _known(self) -> "Trigger":
        _SCALERS[self.type].model_validate(self.metadata)
        return self


class _Rollout(_Strict):
    strategy: Literal["gradual", "immediate"]


class _Scaling(_Strict):
    strategy: Literal["default", "custom", "accurate", "eager"]


class ScaledJobSpec(_Strict):
    """Of a ScaledJob; `jobTargetRef` is the spec of a Job, which kubernetes-validate looks at."""

    job_target_ref: dict[str, Any]
    polling_interval: int = 30
    min_replica_count: int = 0
    max_replica_count: int = 100
    successful_jobs_history_limit: int = 100
    failed_jobs_history_limit: int = 100
    rollout: _Rollout
    scaling_strategy: _Scaling
    triggers: Annotated[list[Trigger], Field(min_length=1)]


class _Target(_Strict):
    name: str
    kind: str = "Deployment"


class ScaledObjectSpec(_Strict):
    """Of a ScaledObject."""

    scale_target_ref: _Target
    polling_interval: int = 30
    cooldown_period: int = 300
    min_replica_count: int = 0
    max_replica_count: int = 100
    triggers: Annotated[list[Trigger], Field(min_length=1)]


class _Identity(_Strict):
    provider: Literal["azure-workload", "gcp", "aws", "aws-eks", "none"]
    identity_id: str | None = None


class _Secret(_Strict):
    parameter: str
    name: str
    key: str


class TriggerAuthenticationSpec(_Strict):
    """Of a TriggerAuthentication."""

    pod_identity: _Identity | None = None
    secret_target_ref: list[_Secret] | None = None


SPECS: dict[str, type[BaseModel]] = {
    "ScaledJob": ScaledJobSpec,
    "ScaledObject": ScaledObjectSpec,
    "TriggerAuthentication": TriggerAuthenticationSpec,
}
