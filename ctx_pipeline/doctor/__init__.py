"""What is wrong with an index, and the remedy: sources, ledger, tables, indexes and partition keys compared.

A repair destroys nothing that might be good: only proven damage is mended, from what is left of the table; files are
moved aside, and rows of documents are deleted only where a refresh would delete them.
"""

from ctx_pipeline.doctor.finding import Finding
from ctx_pipeline.doctor.findings import diagnose
from ctx_pipeline.doctor.repairs import fix

__all__ = ["Finding", "diagnose", "fix"]
