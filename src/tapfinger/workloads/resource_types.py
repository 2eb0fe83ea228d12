"""A scenario's resource types as the domain object."""

from __future__ import annotations

from tapfinger.config import ResourceConfig, Scenario
from tapfinger.core.model import USUAL_ROLES, ResourceRole, ResourceTypes


def resource_types(scenario: Scenario) -> ResourceTypes:
    """Names, units and roles in the scenario's order."""
    roles = tuple(_role(name, config) for name, config in scenario.resources.items())
    return ResourceTypes(tuple(scenario.resources), tuple(c.unit for c in scenario.resources.values()), roles)


def _role(name: str, config: ResourceConfig) -> ResourceRole:
    usual = USUAL_ROLES.get(name, ResourceRole())
    return ResourceRole(
        config.role or usual.lease, config.enforced or usual.enforced, config.variable or usual.variable
    )
