"""Admission webhooks: what a program checks or changes before an API server stores it."""

from typing import TYPE_CHECKING

from listwatch.lazy_names import lazy_names

if TYPE_CHECKING:
    from listwatch.resources.problems import Problem
    from listwatch.webhooks.dispatch import Answer, ReviewHook
    from listwatch.webhooks.hooks import HookOptions
    from listwatch.webhooks.options import WebhookOptions
    from listwatch.webhooks.requests import AdmissionRequest, Denied, User

__all__ = [
    "AdmissionRequest",
    "Answer",
    "Denied",
    "HookOptions",
    "Problem",
    "ReviewHook",
    "User",
    "WebhookOptions",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "listwatch.resources.problems": "Problem",
        "listwatch.webhooks.dispatch": "Answer ReviewHook",
        "listwatch.webhooks.hooks": "HookOptions",
        "listwatch.webhooks.options": "WebhookOptions",
        "listwatch.webhooks.requests": "AdmissionRequest Denied User",
    },
)
