"""One HTML page about run folders. Only reads results from disk; nothing is trained or measured here."""

from pixelpart.report.page import write_report

__all__ = ["write_report"]
