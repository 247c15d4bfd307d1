"""From records to what people compare. Nothing here launches, and nothing here needs torch."""
