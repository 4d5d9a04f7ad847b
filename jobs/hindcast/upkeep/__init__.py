"""Years of use: what keeps tables in shape while code, formats and rows grow old."""
