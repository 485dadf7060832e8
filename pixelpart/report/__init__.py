"""Reads results from disk and writes one HTML page; trains and measures nothing."""

from pixelpart.report.page import write_report

__all__ = ["write_report"]
