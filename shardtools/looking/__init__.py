"""LOOKING. A finished source in, what people see out: documents decoded, exported, counted, compared."""
