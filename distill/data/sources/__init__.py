"""Where rows come from. Each source is what `data.source` of the configuration instantiates."""

from distill.data.sources.code import CodeSource
from distill.data.sources.hub import HubSource
from distill.data.sources.jsonl import JsonlSource
from distill.data.sources.mixture import MixtureSource
from distill.data.sources.rows import Chat, Completion, Document, Problem, Row, Source
from distill.data.sources.self_prompted import SelfPromptedSource

__all__ = [
    "Chat",
    "CodeSource",
    "Completion",
    "Document",
    "HubSource",
    "JsonlSource",
    "MixtureSource",
    "Problem",
    "Row",
    "SelfPromptedSource",
    "Source",
]
