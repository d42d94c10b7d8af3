"""Floor 2: the scenario file, strictly checked, resolved to models, machines and programs."""

from scenarios.errors import ScenarioError
from scenarios.load import json_schema, library, load
from scenarios.schema import Scenario

__all__ = ["Scenario", "ScenarioError", "json_schema", "library", "load"]
