"""CONTENT: pieces of frames -> THD or SBHD arrays. numpy only."""
