"""Chat templates: found, compiled in a sandbox, rendered to text."""

from shardtools.templates.built_in import NamedTemplate, known_templates
from shardtools.templates.template import TODAY, ChatTemplate

__all__ = ["TODAY", "ChatTemplate", "NamedTemplate", "known_templates"]
