"""From records to tokens with the right ones trained."""

from shardtools.masks.checks import check_pair
from shardtools.masks.errors import MaskChoiceError, RenderError
from shardtools.masks.options import RenderOptions
from shardtools.masks.renderer import Renderer
from shardtools.masks.tokens import Rendered, Script

__all__ = ["MaskChoiceError", "RenderError", "RenderOptions", "Rendered", "Renderer", "Script", "check_pair"]
